//! Keeps `src/generated.rs` what `inference.proto` says. `UPDATE_PROTO=1 cargo test -p pappus-gateway` rewrites it.

use std::path::Path;

#[test]
fn generated_code_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().unwrap();
    let descriptors = protox::compile(["inference.proto"], [root.join("proto")]).unwrap();
    let builder = tonic_prost_build::configure()
        .bytes(".")
        .build_client(false)
        .build_transport(false)
        .codec_path("crate::grpc::codec::BoundedCodec")
        .out_dir(out.path());
    builder.compile_fds(descriptors).unwrap();
    let fresh = std::fs::read_to_string(out.path().join("inference.rs")).unwrap();
    let committed = root.join("src/generated.rs");
    if std::env::var_os("UPDATE_PROTO").is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let current = std::fs::read_to_string(&committed).unwrap();
    assert!(current == fresh, "src/generated.rs is stale: run UPDATE_PROTO=1 cargo test -p pappus-gateway");
}
