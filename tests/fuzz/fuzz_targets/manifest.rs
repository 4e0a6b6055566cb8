//! Manifests of strangers: any bytes, and any bytes with the right hash, are refused, or say what can be relied on.
#![no_main]

use libfuzzer_sys::fuzz_target;
use transship_core::{Alignment, DType, Device, Manifest, Tensor};

/// Larger chunks are not allocated to look at their tensors.
const MOST_ALLOCATED: usize = 1 << 20;
/// All paths together, for each byte of the manifest.
const MOST_OF_PATHS: usize = 256;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, body)) = bytes.split_first() else { return };
    let bytes = if kind % 4 == 0 { body.to_vec() } else { hashed(body) };
    let Ok(manifest) = Manifest::from_bytes(bytes.clone()) else { return };
    assert_eq!(manifest.to_bytes(), bytes);
    manifest.check_same(&manifest.clone()).unwrap();

    let (mut count, mut paths, mut last) = (0, 0, String::new());
    let chunks = allocated(&manifest);
    manifest
        .for_each_leaf(|leaf| {
            assert!(leaf.path() >= last.as_str());
            last = leaf.path().to_owned();
            count += 1;
            paths += last.len();
            let Some(chunk) = leaf.chunk() else {
                assert_eq!((leaf.layout().nbytes(), leaf.offset()), (0, 0));
                return Ok(());
            };
            let end = leaf.offset().checked_add(leaf.layout().span()).unwrap();
            assert!(leaf.layout().nbytes() > 0 && end <= manifest.chunks()[chunk]);
            if let Some(chunks) = &chunks {
                let bytes = chunks[chunk].narrow(0, leaf.offset(), leaf.layout().span())?;
                assert_eq!(bytes.nbytes(), leaf.layout().span());
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(count, manifest.len());
    assert!(paths <= bytes.len() * MOST_OF_PATHS);

    let other = Manifest::packed(&vec![Tensor::scalar(*kind)], Alignment::ONE).unwrap();
    assert_eq!(manifest.check_same(&other).is_ok(), manifest == other);
    assert!(manifest.check_tensors(&other).is_ok() || manifest != other);
});

fn allocated(manifest: &Manifest) -> Option<Vec<Tensor>> {
    let total = manifest.chunks().iter().try_fold(0_usize, |sum, bytes| sum.checked_add(*bytes))?;
    let chunk = |bytes: &usize| Tensor::empty(&[*bytes], DType::U8, &Device::host()).unwrap();
    (total <= MOST_ALLOCATED).then(|| manifest.chunks().iter().map(chunk).collect())
}

fn hashed(body: &[u8]) -> Vec<u8> {
    [body, &twox_hash::XxHash3_64::oneshot(body).to_le_bytes()].concat()
}
