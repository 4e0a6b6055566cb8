//! Compiles the kernels for the host.

use std::error::Error;
use std::fs;
use std::path::Path;

const SOURCE: &str = "../../../core/src/backend/stream_ordered/kernels/gather.cu";
const HEADER: &str = "kernels/host.h";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed={HEADER}");
    // The name of the source says another language.
    let file = Path::new(&std::env::var("OUT_DIR")?).join("gather.cpp");
    fs::write(&file, [fs::read_to_string(HEADER)?, fs::read_to_string(SOURCE)?].concat())?;
    cc::Build::new()
        .cpp(true)
        .cpp_link_stdlib(None)
        .std("c++11")
        .file(&file)
        // A device refuses accesses that are not aligned.
        .flag("-fsanitize=alignment")
        .flag("-fsanitize-undefined-trap-on-error")
        .flag("-fno-strict-aliasing")
        .flag("-ffp-contract=off")
        .warnings(false)
        .try_compile("kernels")?;
    Ok(())
}
