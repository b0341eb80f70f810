//! How the binary is linked.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Addresses that the loader adds its own to are listed in bits, not in 24 bytes each: 0.6 MB less to read at the
    // start, and to be resident from then on. glibc understands it from 2.36 on (Debian 12), and an older one refuses
    // the program: so only where it is built for the machine here, and that one does.
    if is_for_here() && glibc().is_some_and(|version| version >= (2, 36)) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

fn is_for_here() -> bool {
    std::env::var_os("HOST") == std::env::var_os("TARGET")
}

/// The version of glibc here, where it has one.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
