//! A new migration file must rebuild the binary that embeds it; on stable, cargo has to be told.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
