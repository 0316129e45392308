//! Your own loop, instrumented. Cargo's features choose which backends there are, `PHASEMARK` which one hears:
//!
//! ```text
//! cargo build -p your-loop
//! PHASEMARK=record target/debug/your-loop                                       # writes your-loop.json
//! PHASEMARK=nvtx   nsys profile -t nvtx -s none target/debug/your-loop
//! PHASEMARK=roctx  rocprofv3 --marker-trace -- target/debug/your-loop
//! ```

use std::hint::black_box;

use marker_core::{Detail, Fields, Marker, Markers, Scope, install, range};

fn main() {
    if let Some(backend) = backend() {
        // Fails only where a backend is installed already, and then that one stays.
        let _ = install(backend, Detail::Phases);
    }
    Markers::global().name_thread("training");
    for rows in [32, 32, 7] {
        range!("step");
        let batch = Markers::global().within("load", || black_box(vec![1.0; rows]));
        range!(Fields::new(Scope::new("forward")).tokens(rows as u64));
        black_box(batch.iter().sum::<f64>());
    }
    save();
}

/// The one that hears. Nothing set: nobody, and nothing is looked for.
fn backend() -> Option<&'static dyn Marker> {
    match std::env::var("PHASEMARK").ok()?.as_str() {
        #[cfg(feature = "nvtx")]
        "nvtx" => Some(Box::leak(Box::new(backend_nvtx::Nvtx::load_or_diagnose(Detail::Phases)))),
        #[cfg(feature = "roctx")]
        "roctx" => Some(Box::leak(Box::new(backend_roctx::Roctx::load_or_diagnose()?))),
        #[cfg(feature = "record")]
        "record" => Some(RECORDER.get_or_init(backend_record::Recorder::new)),
        "" | "off" => None,
        other => {
            eprintln!("PHASEMARK={other}: this build has no such backend; markers are off");
            None
        }
    }
}

#[cfg(feature = "record")]
static RECORDER: std::sync::OnceLock<backend_record::Recorder> = std::sync::OnceLock::new();

/// A profiler writes its own file. The recorder is told where to: ui.perfetto.dev opens it.
fn save() {
    #[cfg(feature = "record")]
    if let Some(recorder) = RECORDER.get()
        && let Err(why) = recorder.save("your-loop.json".as_ref())
    {
        eprintln!("{why}");
    }
}
