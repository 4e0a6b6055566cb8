//! How functions of HIP are declared that only pass a call on.

/// Declares `hipX(arguments) = cuX(arguments);`, in front of which the device of the calling thread is made current. With
/// `[creates]` or `[destroys]` before it, the function is counted as one that makes something or takes it back.
macro_rules! forward {
    ($($([$counted:ident])? fn $hip:ident($($argument:ident: $kind:ty),* $(,)?) = $cu:ident($($passed:expr),* $(,)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $hip($($argument: $kind),*) -> u32 {
                $crate::codes::answer((|| {
                    let cuda = $crate::current::enter()?;
                    // SAFETY: the caller keeps what AMD's reference asks of him, which is what NVIDIA's asks of this one.
                    $crate::codes::check(unsafe { (cuda.$cu)($($passed),*) })?;
                    $($crate::current::$counted();)?
                    Ok(())
                })())
            }
        )*
    };
}

pub(crate) use forward;
