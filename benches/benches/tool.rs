//! NVTX with a tool that answers at once.

use std::error::Error;

use backend_nvtx::{Loader, Nvtx};
use benches::case;
use benches::shim::{RawNvtx, Shim};
use marker_core::Detail;

mod report;

fn main() -> Result<(), Box<dyn Error>> {
    case::settle_labels();
    let shim = Shim::compile()?;
    let raw = RawNvtx::of(&shim)?;
    let nvtx: &'static Nvtx =
        Box::leak(Box::new(Nvtx::load_from(&Loader::library(shim.library()), Detail::Phases)?));
    let group = "nvtx, shim";
    let mut cases = case::raw_nvtx(group, raw);
    cases.extend(case::heard(group, nvtx));
    for (threads, name) in
        [(1, "full label, 1 thread"), (2, "full label, 2 threads"), (8, "full label, 8 threads")]
    {
        cases.push(case::threads(group, name, threads, nvtx));
    }
    report::run("Markers, NVTX with a tool that answers at once", cases);
    Ok(())
}
