//! Copies that are to be recorded into a graph, on devices whose graphs hold nothing: they are refused, and nothing is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use support::{bytes_of, late, no_violations, on};
use transship_core::backend::StreamPriority;
use transship_core::{BackgroundWork, CopyOptions, Error, start_copy_into};

/// catches: 459-a-worker-records-too-late
#[test]
fn a_stream_whose_graph_holds_nothing_takes_no_copy() {
    for when in [BackgroundWork::Auto, BackgroundWork::Never] {
        let (late, device) = late();
        let stream = device.create_stream(StreamPriority::Normal).unwrap();
        // SAFETY: nobody else ends the capture.
        let options = unsafe { CopyOptions::default().stream(&stream).background(when).into_graph() };
        let (from, into) = (on(&device, &[1; 3000]), on(&device, &[2; 3000]));
        let address = into.address().unwrap();
        // Without a capture it is a copy as any other.
        let into = start_copy_into(from.clone(), into, options.clone()).unwrap().wait().unwrap();
        assert_eq!(bytes_of(&into), [1; 3000]);
        late.capture(&**stream.backend_stream(), true);
        let refused = start_copy_into(from.clone(), into, options.clone()).unwrap_err();
        assert!(matches!(refused.error(), Error::StreamCaptured { .. }), "{refused:#}");
        let text = refused.error().to_string();
        assert!(text.contains("hold what their copies use"), "{text}");
        // More copies than the caller's thread makes, of which a worker would find out too late.
        let many = |byte| (0..200).map(|_| on(&device, &[byte; 100])).collect::<Vec<_>>();
        let (source, target) = (many(3), many(4));
        late.capture(&**stream.backend_stream(), true);
        let worker = start_copy_into(source, target, options).unwrap_err();
        assert!(matches!(worker.error(), Error::StreamCaptured { .. }), "{worker:#}");
        late.capture(&**stream.backend_stream(), false);
        let (source, into) = refused.into_both();
        assert_eq!(bytes_of(&source.unwrap()), [1; 3000]);
        let into = start_copy_into(from, into.unwrap(), CopyOptions::default()).unwrap().wait().unwrap();
        assert_eq!((bytes_of(&into), into.address().unwrap()), (vec![1; 3000], address));
        drop(worker);
        no_violations(&late);
    }
}
