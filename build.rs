//! How the binary is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Addresses that the loader adds its own to are listed in bits, not in 24 bytes each: 0.6 MB less to read at the
    // start, and to be resident from then on. Needs glibc 2.36 (Debian 12); binutils before 2.38 warn and link as ever.
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
