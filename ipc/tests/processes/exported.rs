//! Trees handed from one process to another.

use std::collections::BTreeMap;
use std::path::Path;

use libtest_mimic::Trial;
use transship_core::{CopyOptions, DType, Device, Error, Tensor, start_copy};
use transship_ipc::{Connection, Exporter, Importer, IpcError};

use crate::support::{LONG, batch, case, compare, devices, folder, like};
use crate::tree_child::{Process, Role, TREES, connect, spawn, tree_of};

pub(crate) fn cases() -> Vec<Trial> {
    vec![
        case("trees_of_another_process_arrive", trees_of_another_process_arrive),
        case("trees_are_handed_to_several_processes", trees_are_handed_to_several_processes),
        case("shared_memory_is_copied_and_not_read", shared_memory_is_copied_and_not_read),
        case("structures_of_all_kinds_arrive", structures_of_all_kinds_arrive),
        case("results_of_a_device_arrive", results_of_a_device_arrive),
        case("another_structure_is_refused", another_structure_is_refused),
        case("what_lies_on_devices_is_refused", what_lies_on_devices_is_refused),
        case("a_manifest_that_nobody_believes_is_not_sent", a_manifest_that_nobody_believes_is_not_sent),
        case("a_socket_has_one_exporter", a_socket_has_one_exporter),
    ]
}

/// Both ends in this process.
pub(crate) fn pair(path: &Path, device: &Device) -> (Connection, Importer) {
    let exporter = Exporter::bind(path).unwrap();
    let importer = Importer::connect(path, device).unwrap();
    (exporter.accept_within(LONG).unwrap(), importer)
}

fn trees_of_another_process_arrive() {
    for device in devices() {
        let (_folder, path) = folder();
        let process = spawn(&path, Role::Exporter, None);
        let mut importer = connect(&path, device);
        for number in 0..TREES {
            let there = importer.next_within(LONG).unwrap().unwrap();
            let paths: Vec<_> = there.tensors().unwrap().into_iter().map(|(path, _)| path).collect();
            assert_eq!(paths, [r#"["ids"]"#, r#"["image"]"#, r#"["nothing"]"#, r#"["odd"]"#]);
            let there = start_copy(tree_of(&there, number), device, CopyOptions::default()).unwrap();
            compare(there.wait().unwrap(), number);
        }
        assert!(importer.next_within(LONG).unwrap().is_none());
        assert!(importer.next().is_none());
        process.join();
    }
}

fn trees_are_handed_to_several_processes() {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    let processes = [0, 1].map(|_| spawn(&path, Role::Importer, None));
    let mut connections = processes.each_ref().map(|_| exporter.accept_within(LONG).unwrap());
    let mut offers = Vec::new();
    for number in 0..TREES {
        offers.extend(connections.each_mut().map(|connection| connection.export(&batch(number)).unwrap()));
    }
    offers.iter().for_each(|offer| offer.wait_released(LONG).unwrap());
    drop(connections);
    processes.into_iter().for_each(Process::join);
}

fn shared_memory_is_copied_and_not_read() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    connection.export(&batch(3)).unwrap();
    let tree = tree_of(&importer.next_within(LONG).unwrap().unwrap(), 3);
    assert!(matches!(tree["image"].as_slice::<u8>(), Err(Error::SharedMemory)));
    assert!(tree["image"].clone().as_mut_slice::<u8>().is_err());
    compare(tree, 3);
}

type Layer = (Tensor, Vec<Tensor>, Option<Tensor>);

fn layer(seed: u8) -> Layer {
    let bytes = |count: u8| (0..count).map(|at| at.wrapping_mul(7).wrapping_add(seed)).collect::<Vec<_>>();
    let weight = Tensor::from_vec(bytes(60), &[3, 4, 5]).unwrap();
    // One over the memory of another, one with gaps, one in another order, and one where another begins.
    let first = weight.narrow(0, 0, 1).unwrap();
    let parts = vec![weight.clone(), weight.narrow(2, 1, 2).unwrap(), weight.transpose(0, 2).unwrap(), first];
    (weight, parts, Some(Tensor::from(vec![f64::from(seed)])))
}

fn bare(seed: u8) -> Layer {
    let (weight, parts, _) = layer(seed);
    (weight, parts, None)
}

/// Deliberate bug: what shares memory is sent once for each tensor over it.
fn structures_of_all_kinds_arrive() {
    let host = Device::host();
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, &host);
    let tree = BTreeMap::from([("a", layer(1)), ("b", layer(2)), ("c", bare(3))]);
    let offer = connection.export(&tree).unwrap();
    let there = importer.next_within(LONG).unwrap().unwrap();
    // Of 17 tensors, each of less than 64 bytes, three are over the memory of another one.
    assert!(there.manifest().chunks()[0] <= 14 * 64, "what shares memory is sent once");
    let mut filled = BTreeMap::from([("a", layer(9)), ("b", layer(9)), ("c", bare(9))]);
    there.put_into(&mut filled).unwrap();
    drop(there);
    let filled = start_copy(filled, &host, CopyOptions::default()).unwrap().wait().unwrap();
    for (name, expected) in &tree {
        let layer = &filled[name];
        assert_eq!(layer.0.to_bytes().unwrap(), expected.0.to_bytes().unwrap());
        for (part, expected) in layer.1.iter().zip(&expected.1) {
            assert_eq!(
                (part.shape(), part.to_bytes().unwrap()),
                (expected.shape(), expected.to_bytes().unwrap())
            );
        }
        assert_eq!(layer.2.is_some(), expected.2.is_some());
    }
    drop(filled);
    offer.wait_released(LONG).unwrap();
    // Nothing at all, and nothing but tensors without elements.
    for tree in [vec![], vec![Tensor::from(Vec::<f32>::new())]] {
        connection.export(&tree).unwrap();
        let mut filled = tree.clone();
        importer.next_within(LONG).unwrap().unwrap().put_into(&mut filled).unwrap();
    }
}

fn results_of_a_device_arrive() {
    let [host, late] = devices();
    for number in 0..4 {
        let (_folder, path) = folder();
        let (mut connection, mut importer) = pair(&path, host);
        let there = start_copy(batch(number), late, CopyOptions::default()).unwrap().wait().unwrap();
        let back = start_copy(there, host, CopyOptions::default()).unwrap().wait().unwrap();
        connection.export(&back).unwrap();
        drop(back);
        compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), number), number);
    }
}

fn another_structure_is_refused() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    connection.export(&batch(1)).unwrap();
    let there = importer.next_within(LONG).unwrap().unwrap();
    let mut other = like(1);
    other.insert("image".to_owned(), Tensor::zeros(&[300, 1023], DType::U8, &Device::host()).unwrap());
    let error = there.put_into(&mut other).unwrap_err();
    assert!(matches!(error, Error::ManifestMismatch { path, .. } if path == r#"["image"]"#));
}

fn what_lies_on_devices_is_refused() {
    let [host, late] = devices();
    let (_folder, path) = folder();
    let (mut connection, _importer) = pair(&path, host);
    let there = start_copy(batch(1), late, CopyOptions::default()).unwrap().wait().unwrap();
    let refused = connection.export(&there).unwrap_err();
    assert!(matches!(refused, IpcError::Tensors(Error::Unsupported { device, .. }) if device == late.id()));
    let mut mixed = batch(1);
    mixed.insert("image".to_owned(), there["image"].clone());
    let refused = connection.export(&mixed).unwrap_err();
    assert!(matches!(refused, IpcError::SeveralDevices { path, .. } if path == r#"["image"]"#));
    assert_eq!(connection.lent(), 0);
}

/// Deliberate bugs: `export`, or `open_window`, does not look at the size of the manifest.
fn a_manifest_that_nobody_believes_is_not_sent() {
    let (_folder, path) = folder();
    let (mut connection, mut importer) = pair(&path, devices()[0]);
    let long = |number: u8| (format!("{number:03}{}", "x".repeat(1 << 20)), Tensor::scalar(number));
    let tree: BTreeMap<String, Tensor> = (0..65).map(long).collect();
    let is_refused = |error: IpcError| {
        let said = error.to_string();
        assert!(
            matches!(error, IpcError::ManifestTooLarge { bytes, limit, .. } if bytes > limit && limit == 64 << 20)
        );
        assert!(said.contains("above the limit of 67108864; "), "{said}");
    };
    is_refused(connection.export(&tree).unwrap_err());
    is_refused(connection.open_window(&tree, devices()[0]).unwrap_err());
    assert_eq!(connection.lent(), 0);
    connection.export(&batch(1)).unwrap();
    compare(tree_of(&importer.next_within(LONG).unwrap().unwrap(), 1), 1);
}

fn a_socket_has_one_exporter() {
    let (_folder, path) = folder();
    let exporter = Exporter::bind(&path).unwrap();
    assert!(matches!(Exporter::bind(&path), Err(IpcError::System { .. })));
    let limit = std::time::Duration::from_millis(1);
    assert!(matches!(exporter.accept_within(limit), Err(IpcError::NotInTime { .. })));
    drop(exporter);
    assert!(matches!(Importer::connect(&path, devices()[0]), Err(IpcError::System { .. })));
    drop(Exporter::bind(&path).unwrap());
}
