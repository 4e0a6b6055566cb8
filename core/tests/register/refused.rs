//! What is not locked, and what comes back.

use late_backend::{Call, LateConfig};
use transship_core::{Alignment, DType, Device, Error, MemoryKind};

use crate::hostile::Flag;
use crate::support::{late, with};
use crate::{Lender, calls, spaced, whole};

/// The host needs no page-locking, and memory of no bytes none either.
#[test]
fn where_nothing_must_be_locked_nothing_is() {
    let (late, device) = late();
    let host = Device::host();
    let gone = Flag::default();
    let flag = gone.clone();
    let memory = host.register(Lender::new(100, move || flag.raise())).unwrap();
    assert_eq!((memory.memory_kind(), memory.nbytes()), (MemoryKind::Pageable, 100));
    drop(memory);
    assert!(gone.is_raised(), "it goes as that of Tensor::from_owner");
    let mut ordinary = host.register_vec(spaced(1_u8, 4), &[4]).unwrap();
    ordinary.as_mut_slice::<u8>().unwrap()[0] = 3;
    assert_eq!(ordinary.into_vec::<u8>().unwrap(), [3, 1, 1, 1]);
    assert_eq!(device.register(Vec::new()).unwrap().nbytes(), 0);
    assert!(device.register_vec(Vec::<f32>::new(), &[0]).unwrap().into_vec::<f32>().unwrap().is_empty());
    assert_eq!(calls(&late, Call::Register), 0);
}

#[test]
fn what_is_refused_comes_back() {
    let (late, device) = late();
    late.fail_next(Call::Register, 0);
    let refused = device.register_vec(spaced(5_u8, 100), &[100]).unwrap_err();
    assert!(matches!(refused.error(), Error::Driver { .. }), "{refused}");
    assert_eq!(refused.into_value(), [5; 100]);
    let refused = device.register_vec(spaced(5_u8, 100), &[99]).unwrap_err();
    assert!(matches!(Error::from(refused), Error::ShapeMismatch { .. }));
    let memory = device.register(spaced(5_u8, 100)).unwrap();
    assert!(matches!(memory.tensor(DType::U8, &[10], 91), Err(Error::OutOfRange { .. })));
    assert!(matches!(memory.tensor(DType::U8, &[usize::MAX, 2], 0), Err(Error::SizeOverflow { .. })));
    assert!(matches!(memory.tensor(DType::F64, &[1], 1), Err(Error::Misaligned { .. })));
    let mut tensor = whole(&memory);
    drop(memory);
    assert!(matches!(tensor.as_mut_bytes(), Err(Error::NotWritable { .. })), "it is read-only");

    let mapped = LateConfig {
        mapped_staging: true,
        copy_granularity: Alignment::new(4).unwrap(),
        ..LateConfig::new("mapped")
    };
    let (_, device) = with(mapped);
    let refused = device.register(spaced(5_u8, 100)).unwrap_err();
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused}");
    assert_eq!(refused.into_value(), [5; 100]);
}
