//! What fails is an error in its place.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::executor::block_on;
use futures::stream::{self, StreamExt};
use late_backend::Call;
use transship_core::{Device, Error, Prefetch, PrefetchError, PrefetchStream, Tensor, Value};

use crate::support::{bytes_of, late, no_violations};
use crate::{item, number, options, too_deep};

#[test]
fn errors_come_in_their_places_and_the_next_items_follow() {
    let (late, device) = late();
    let source = (0..6_u8).map(|number| match number {
        1 => Err("the disk is full"),
        3 => Ok(too_deep()),
        _ => Ok(Value::from(Tensor::from(vec![number; 10]))),
    });
    let items: Vec<_> = source.clone().try_prefetch(&device, options()).collect();
    let streamed: Vec<_> = block_on(stream::iter(source).try_prefetch(&device, options()).collect());
    for items in [items, streamed] {
        assert_eq!(items.len(), 6);
        for (number, item) in items.into_iter().enumerate() {
            match (number, item) {
                (1, Err(PrefetchError::Source(error))) => assert_eq!(error, "the disk is full"),
                (3, Err(PrefetchError::Copy(error))) => {
                    assert!(matches!(error.error(), Error::TooDeep { .. }), "{error:#}");
                    assert!(error.into_value().is_some(), "the item is given back");
                }
                (_, Ok(Value::Tensor(tensor))) => assert_eq!(bytes_of(&tensor), vec![number as u8; 10]),
                (_, other) => panic!("{number}: {other:?}"),
            }
        }
    }
    no_violations(&late);
}

#[test]
fn a_copy_that_fails_on_the_device_is_an_error_in_its_place() {
    let (late, device) = late();
    device.prepare(1024).unwrap();
    late.fail_next(Call::Submit, 2);
    let items: Vec<_> = (0..6).map(item).prefetch(&device, options()).collect();
    let failed: Vec<_> = items.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, true, false, false, false]);
    let error = items.into_iter().nth(2).unwrap().unwrap_err();
    assert!(std::error::Error::source(&error).is_some(), "{error}");
    assert!(!matches!(Error::from(error), Error::Cancelled));
    no_violations(&late);
}

/// catches: 175-a-panic-of-the-source-loses-an-item
#[test]
fn a_source_that_panics_loses_no_item() {
    let asked = Cell::new(0);
    let source = std::iter::from_fn(|| {
        asked.set(asked.get() + 1);
        assert!(asked.get() != 4, "as this test wants it to");
        (asked.get() < 9).then(|| item(asked.get()))
    });
    let mut items = source.prefetch(&Device::host(), options());
    let mut numbers = Vec::new();
    for _ in 0..10 {
        match catch_unwind(AssertUnwindSafe(|| items.next())) {
            Ok(Some(item)) => numbers.push(number(&item.unwrap())),
            Ok(None) => break,
            Err(_) => assert_eq!(asked.get(), 4),
        }
    }
    assert_eq!(numbers, [1, 2, 3, 5, 6, 7, 8]);
}

#[test]
fn errors_of_sources_are_found_behind_those_of_items() {
    type Failure = Box<dyn std::error::Error + Send + Sync>;
    let failed = |turn: u8| match turn {
        1 => Err(std::io::Error::other("the disk is full")),
        _ => Ok(Tensor::from(vec![turn; 8])),
    };
    let host = Device::host();
    let mut items = (0..3).map(failed).try_prefetch_in_turn(&[host.clone(), late().1], options());
    assert!(items.next().unwrap().is_ok());
    let error = items.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the source failed");
    assert_eq!(format!("{error:#}"), "the source failed: the disk is full");
    let source = std::error::Error::source(&error).unwrap();
    assert!(source.downcast_ref::<std::io::Error>().is_some());

    let boxed = (0..3).map(|turn| failed(turn).map_err(Failure::from)).try_prefetch(&host, options());
    let failures: Vec<_> = boxed.filter_map(|item| item.map_err(PrefetchError::into_error).err()).collect();
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].to_string(), "the disk is full");
}
