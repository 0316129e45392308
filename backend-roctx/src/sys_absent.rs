//! Stands for the C side where there is none, so that the crate builds. Nothing can be made of it.

use marker_core::Label;

/// ROCTX of a system that has none.
#[derive(Debug)]
pub(crate) enum Api {}

impl Api {
    pub(crate) fn push(&self, _: &Label) -> i32 {
        match *self {}
    }
    pub(crate) fn pop(&self) {
        match *self {}
    }
    pub(crate) fn mark(&self, _: &Label) {
        match *self {}
    }
    pub(crate) fn start(&self, _: &Label) -> Option<u64> {
        match *self {}
    }
    pub(crate) fn stop(&self, _: u64) {
        match *self {}
    }
    pub(crate) fn name_thread(&self, _: &Label) {
        match *self {}
    }
    pub(crate) fn pause(&self) -> Option<i32> {
        match *self {}
    }
    pub(crate) fn resume(&self) -> Option<i32> {
        match *self {}
    }
}
