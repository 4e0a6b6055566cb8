//! What programs see on a machine without a GPU.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed unwrap fails the test")]

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use transship_candle::{Error, start_copy, start_import};

#[test]
fn what_is_there_already_stays_as_it_is() {
    let view = Tensor::arange(0_u32, 6, &Device::Cpu).unwrap().reshape((2, 3)).unwrap().t().unwrap();
    let there = start_copy(vec![Some(view.clone()), None], &Device::Cpu).unwrap();
    assert!(there.is_ready().unwrap());
    let there = there.wait().unwrap();
    assert_eq!(there[0].as_ref().unwrap().id(), view.id());
}

/// Deliberate bug: the destination of a `bool` is of another type.
#[test]
fn tensors_of_transship_become_candles() {
    let strided =
        transship::Tensor::from_vec(vec![1_i64, 2, 3, 4], &[2, 2]).unwrap().transpose(0, 1).unwrap();
    let named = [
        ("mask", transship::Tensor::from_vec(vec![true, false, true], &[3]).unwrap()),
        ("ids", strided),
        (
            "none",
            transship::Tensor::zeros(&[0, 4], transship::DType::BF16, &transship::Device::host()).unwrap(),
        ),
    ];
    let copied = start_import(named, &Device::Cpu).unwrap();
    assert!(copied.is_ready().unwrap());
    let tensors: HashMap<&str, Tensor> = copied.wait().unwrap().into_iter().collect();
    assert_eq!(tensors["mask"].to_vec1::<u8>().unwrap(), [1, 0, 1]);
    assert_eq!(tensors["ids"].to_vec2::<i64>().unwrap(), [[1, 3], [2, 4]]);
    assert_eq!((tensors["none"].dtype(), tensors["none"].dims()), (DType::BF16, &[0, 4][..]));
}

/// Deliberate bug: `zeros` in `landing.rs` is `vec!`, which ends the process.
#[test]
fn memory_that_cannot_be_had_is_an_error_and_nothing_is_lost() {
    let one = transship::Tensor::from_vec(vec![1_f32], &[1]).unwrap();
    for elements in [1 << 45, 1 << 60] {
        let repeated = one.as_strided(&[elements], &[0], 0).unwrap();
        let failed = start_import([("x", repeated)], &Device::Cpu).unwrap_err();
        let is_named = matches!(&failed.error, Error::Transship(error)
            if matches!(**error, transship::Error::OutOfMemory { kind: "host", .. }));
        assert!(is_named, "{}", failed.error);
        assert_eq!(failed.value[0].1.shape(), [elements]);
    }
}

#[test]
fn types_that_candle_has_not_are_named_and_nothing_is_lost() {
    let unknown = transship::Tensor::from_vec(vec![1_i8, 2], &[2]).unwrap();
    for dtype in
        [transship::DType::I8, transship::DType::U16, transship::DType::U64, transship::DType::Complex64]
    {
        let other = transship::Tensor::zeros(&[1], dtype, &transship::Device::host()).unwrap();
        let failed = start_import([("w", unknown.clone()), ("z", other)], &Device::Cpu).unwrap_err();
        assert!(
            matches!(&failed.error, Error::NotInCandle { path, dtype: transship::DType::I8 } if path == "w")
        );
        assert_eq!(failed.value[0].1.as_slice::<i8>().unwrap(), [1, 2]);
        let error = start_import([("z", failed.value[1].1.clone())], &Device::Cpu).unwrap_err().error;
        assert!(error.to_string().starts_with(&format!("z: candle has no {dtype}; ")), "{error}");
    }
}

#[test]
fn nesting_ends_in_an_error() {
    struct Nested(Option<Box<Nested>>);

    impl transship_candle::TensorTree for Nested {
        fn visit(
            &mut self,
            visitor: &mut transship_candle::Visitor<'_>,
        ) -> Result<(), transship_candle::Stop> {
            self.0.visit(visitor)
        }
    }

    let deep = |levels| (0..levels).fold(Nested(None), |inner, _| Nested(Some(Box::new(inner))));
    assert!(start_copy(deep(40), &Device::Cpu).is_ok());
    let failed = start_copy(deep(400), &Device::Cpu).unwrap_err();
    assert!(matches!(failed.error, Error::TooDeep { .. }));
    assert!(failed.value.0.is_some());
}
