//! The binary's commands.
