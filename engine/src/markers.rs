//! The one file that names the marker backends: it assembles what features compiled in and the user chose.
