//! Tensors whose values are not what their memory holds: PyTorch conjugates or negates what it reads there, or there is none. A bit of each tensor (its
//! `DispatchKeySet`) says so. Where that lies is looked for once. What has no bit but those of an ordinary tensor of the host is one: what is sparse, nested, quantised, meta, on a
//! device or wrapped by something has others.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Where every tensor has these bits, and which they are.
pub struct LazyBits {
    word: usize,
    mask: u64,
    /// All that an ordinary tensor of the host has.
    plain: u64,
}

/// So many words of a `TensorImpl` are looked at. It has as many, or more (PyTorch 2.11).
const WORDS: usize = 23;

impl LazyBits {
    /// `None` where PyTorch does not tell its bits, or they lie elsewhere. `implementation_of` says where the `TensorImpl` of a tensor is.
    pub fn find(
        module: &Bound<'_, PyAny>,
        implementation_of: impl Fn(&Bound<'_, PyAny>) -> *const u64,
    ) -> PyResult<Option<Self>> {
        let Ok(keys) = module.getattr("_C")?.getattr("_dispatch_keys") else { return Ok(None) };
        let Some(pairs) = pairs(module)? else { return Ok(None) };
        let (mut mask, mut of_plain) = (0, None);
        let mut candidates = (0..WORDS).collect::<Vec<_>>();
        for pair in pairs {
            let mut bits = [0_u64; 2];
            for (bits, tensor) in bits.iter_mut().zip(&pair) {
                let Ok(raw) = keys.call1((tensor,)).and_then(|keys| keys.call_method0("raw_repr")) else {
                    return Ok(None);
                };
                *bits = raw.extract()?;
                let implementation = implementation_of(tensor);
                // SAFETY: a `TensorImpl` of so many words, which lives as long as its tensor.
                candidates.retain(|word| unsafe { *implementation.wrapping_add(*word) } == *bits);
            }
            let [plain, lazy] = bits;
            if lazy & !plain == 0 || plain != *of_plain.get_or_insert(plain) {
                return Ok(None);
            }
            mask |= lazy & !plain;
        }
        match (&candidates[..], of_plain) {
            ([word], Some(plain)) => Ok(Some(Self { word: *word, mask, plain })),
            _ => Ok(None),
        }
    }

    /// Whether the values of a tensor are not what its memory holds.
    ///
    /// # Safety
    ///
    /// This is a `TensorImpl`, which is alive.
    #[inline]
    pub unsafe fn are_set(&self, implementation: *const u64) -> bool {
        // SAFETY: the caller's promise; `find` has seen the bits of others there.
        unsafe { *implementation.wrapping_add(self.word) & self.mask != 0 }
    }

    /// Whether it is an ordinary tensor of the host. `false` says nothing.
    ///
    /// # Safety
    ///
    /// As [`are_set`](Self::are_set).
    #[inline]
    pub unsafe fn are_plain(&self, implementation: *const u64) -> bool {
        // SAFETY: the caller's promise, as above.
        unsafe { *implementation.wrapping_add(self.word) == self.plain }
    }
}

/// Of each kind of lazy tensor one, behind a plain one of the same elements. `None` where this PyTorch makes no such tensors.
fn pairs<'py>(module: &Bound<'py, PyAny>) -> PyResult<Option<[[Bound<'py, PyAny>; 2]; 3]>> {
    let py = module.py();
    let zeros = |dtype: &str| {
        let named = PyDict::new(py);
        named.set_item("dtype", module.getattr(dtype)?)?;
        named.set_item("device", "cpu")?;
        module.getattr("zeros")?.call(((3,),), Some(&named))
    };
    let (real, complex) = (zeros("float32")?, zeros("complex64")?);
    let conjugated = complex.call_method0("conj")?;
    let named = PyDict::new(py);
    named.set_item("device", "cpu")?;
    let (Ok(negated), Ok(zero)) = (
        module.call_method1("_neg_view", (&real,)),
        module.getattr("_efficientzerotensor").and_then(|zero| zero.call(((3,),), Some(&named))),
    ) else {
        return Ok(None);
    };
    Ok(Some([[complex, conjugated], [real.clone(), negated], [real, zero]]))
}
