//! What every backend owes. In a program of its own: the suite fills the table of labels.

use backend_null::Null;
use marker_core::conformance::{Expect, check};

#[test]
fn the_contract_is_kept_and_nothing_is_taken() {
    check(&Null, Expect::NOT_TAKEN, None);
}
