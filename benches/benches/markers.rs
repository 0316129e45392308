//! Markers without a tool: off, ROCTX's floor and Debian's real library, NVTX with nobody attached, the recorder,
//! and the peers.

use std::error::Error;

use backend_nvtx::Nvtx;
use benches::case::{self, Case};
use benches::shim::{self, RawRoctx, Shim};
use marker_core::Detail;

mod report;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os(backend_nvtx::VARIABLE).is_some() {
        return Err(
            "an NVTX tool is attached; measure with one by the bench `tool` or the binary `attached`".into(),
        );
    }
    case::settle_labels();
    let shim = Shim::compile()?;
    let nvtx: &'static Nvtx = Box::leak(Box::new(Nvtx::load(Detail::Phases)?));

    let mut cases = case::off();
    cases.extend(roctx("roctx, shim", shim.library())?);
    match shim::debian_roctx() {
        Some(library) => cases.extend(roctx("roctx, Debian's", &library)?),
        None => eprintln!(
            "Debian's libroctx64 is not measured: `cargo test -p backend-roctx --test roctx -- --ignored debian` fetches it"
        ),
    }
    cases.extend(case::heard("nvtx, no tool", nvtx));
    cases.extend(case::record());
    #[cfg(feature = "peers")]
    cases.extend(benches::peers::all());
    let heard = Box::leak(Box::new(shim::roctx(shim.library())?));
    cases.push(case::threads("roctx, shim", "full label, 1 thread", 1, heard));
    cases.push(case::threads("roctx, shim", "full label, 2 threads", 2, heard));
    cases.push(case::threads("roctx, shim", "full label, 8 threads", 8, heard));
    report::run("Markers, no tool", cases);
    let room = 1 << 16;
    let (_, bytes) = benches::allocations::of(|| drop(backend_record::Recorder::with_capacity(room)));
    println!(
        "The recorder sets {:.0} bytes aside a range or mark when it is made, and allocates nothing after that.\n",
        bytes as f64 / room as f64
    );
    Ok(())
}

fn roctx(group: &'static str, library: &std::path::Path) -> Result<Vec<Case>, Box<dyn Error>> {
    let heard = Box::leak(Box::new(shim::roctx(library)?));
    let mut cases = case::raw_roctx(group, RawRoctx::of(library)?);
    cases.extend(case::heard(group, heard));
    Ok(cases)
}
