//! On Linux the program brings its own entry point and needs of C only what `core` calls, such as `memcpy`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-nostartfiles");
    println!("cargo::rustc-link-arg-bins=-lc");
}
