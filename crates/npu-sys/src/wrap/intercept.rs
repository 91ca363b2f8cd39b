//! Standing in front of a driver: the one list of calls, and how each is passed on.
//!
//! A wrapper says what it does when a call comes in and when it is over ([`Intercept::enter`],
//! [`Intercept::leave`]), or replaces a call's own method; the rest is made here from the list.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Index, IndexMut};

use crate::driver::{Driver, HostFunction};
use crate::error::DriverError;
use crate::types::{
    Access, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr,
    MemoryInfo, StreamHandle, VaRange,
};

/// A function with the word `unsafe` before it, or without.
macro_rules! function {
    (safe $($function:tt)*) => { $($function)* };
    (unsafe $($function:tt)*) => { unsafe $($function)* };
}

/// Makes all that depends on the list of calls. Each has a line of the list:
///
/// ```text
/// Name: safe fn name(arguments) -> value => (how a log shows the arguments);
/// ```
macro_rules! calls {
    ($( $call:ident : $safety:ident fn $name:ident ( $($argument:ident : $type:ty),* )
        -> $value:ty => ( $($text:tt)* ); )*) => {
        /// A call of [`Driver`] that can fail.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Call { $( $call, )* }

        impl Call {
            const ALL: [Call; FALLIBLE_CALLS.len()] = [$( Call::$call, )*];
        }

        /// Names of all calls of [`Driver`](crate::Driver) that can fail, as the trait spells
        /// them and in its order.
        pub const FALLIBLE_CALLS: [&str; [$( stringify!($name), )*].len()] =
            [$( stringify!($name), )*];

        /// What stands in front of another driver. Whoever is one is a [`Driver`] as well.
        pub trait Intercept: Send + Sync + fmt::Debug {
            /// What is kept of a call while it is under way.
            type Entered;

            /// The driver behind.
            fn inner(&self) -> &dyn Driver;

            /// Before a call is passed on. An error is the call's, which then goes no deeper.
            fn enter(
                &self,
                call: Call,
                arguments: fmt::Arguments<'_>,
            ) -> Result<Self::Entered, DriverError>;

            /// After a call was passed on.
            fn leave<T: fmt::Debug>(
                &self,
                _call: Call,
                _entered: Self::Entered,
                _result: &Result<T, DriverError>,
            ) {
            }

            /// As [`Driver::wants_accesses`].
            fn wants_accesses(&self) -> bool {
                self.inner().wants_accesses()
            }

            $( function! {
                $safety fn $name(&self $(, $argument: $type)*) -> Result<$value, DriverError> {
                    let entered = self.enter(Call::$call, format_args!($($text)*))?;
                    #[allow(unused_unsafe)] // Some calls are safe.
                    // SAFETY: the caller's promise is passed on unchanged.
                    let result = unsafe { self.inner().$name($($argument),*) };
                    self.leave(Call::$call, entered, &result);
                    result
                }
            } )*
        }

        impl<W: Intercept> Driver for W {
            fn properties(&self) -> DeviceProperties {
                self.inner().properties()
            }

            fn now_us(&self) -> f64 {
                self.inner().now_us()
            }

            fn wants_accesses(&self) -> bool {
                Intercept::wants_accesses(self)
            }

            $( function! {
                $safety fn $name(&self $(, $argument: $type)*) -> Result<$value, DriverError> {
                    #[allow(unused_unsafe)] // Some calls are safe.
                    // SAFETY: the caller's promise is passed on unchanged.
                    unsafe { Intercept::$name(self $(, $argument)*) }
                }
            } )*
        }
    };
}

calls! {
    MemoryInfo: safe fn memory_info() -> MemoryInfo => ("");
    Reserve: safe fn reserve(size_bytes: u64) -> VaRange => ("{size_bytes} bytes");
    FreeRange: safe fn free_range(range: VaRange) -> ()
        => ("{:?} + {} bytes", range.start, range.size_bytes);
    CreateChunk: safe fn create_chunk(size_bytes: u64) -> ChunkHandle => ("{size_bytes} bytes");
    ReleaseChunk: safe fn release_chunk(chunk: ChunkHandle) -> () => ("{chunk:?}");
    Map: safe fn map(range: VaRange, chunk: ChunkHandle) -> ()
        => ("{:?} + {} bytes, {chunk:?}", range.start, range.size_bytes);
    SetAccess: safe fn set_access(range: VaRange) -> ()
        => ("{:?} + {} bytes", range.start, range.size_bytes);
    Unmap: unsafe fn unmap(range: VaRange) -> ()
        => ("{:?} + {} bytes", range.start, range.size_bytes);
    AllocateDevice: safe fn allocate_device(size_bytes: u64) -> DevicePtr
        => ("{size_bytes} bytes");
    FreeDevice: unsafe fn free_device(start: DevicePtr) -> () => ("{start:?}");
    AllocatePinned: safe fn allocate_pinned(size_bytes: u64) -> HostPtr => ("{size_bytes} bytes");
    FreePinned: unsafe fn free_pinned(start: HostPtr) -> () => ("{start:?}");
    RegisterHost: unsafe fn register_host(start: HostPtr, size_bytes: u64) -> ()
        => ("{start:?} + {size_bytes} bytes");
    UnregisterHost: unsafe fn unregister_host(start: HostPtr) -> () => ("{start:?}");
    DevicePointer: safe fn device_pointer(start: HostPtr) -> DevicePtr => ("{start:?}");
    CreateStream: safe fn create_stream() -> StreamHandle => ("");
    DestroyStream: safe fn destroy_stream(stream: StreamHandle) -> () => ("{stream:?}");
    SynchronizeStream: safe fn synchronize_stream(stream: StreamHandle) -> () => ("{stream:?}");
    IsCaptured: safe fn is_captured(stream: StreamHandle) -> bool => ("{stream:?}");
    CreateEvent: safe fn create_event(kind: EventKind) -> EventHandle => ("{kind:?}");
    DestroyEvent: safe fn destroy_event(event: EventHandle) -> () => ("{event:?}");
    RecordEvent: safe fn record_event(event: EventHandle, stream: StreamHandle) -> ()
        => ("{event:?}, {stream:?}");
    WaitEvent: safe fn wait_event(stream: StreamHandle, event: EventHandle) -> ()
        => ("{stream:?}, {event:?}");
    QueryEvent: safe fn query_event(event: EventHandle) -> bool => ("{event:?}");
    SynchronizeEvent: safe fn synchronize_event(event: EventHandle) -> () => ("{event:?}");
    ElapsedUs: safe fn elapsed_us(start: EventHandle, end: EventHandle) -> f64
        => ("{start:?}, {end:?}");
    Copy: unsafe fn copy(copy: Copy, stream: StreamHandle) -> () => ("{copy:?}, {stream:?}");
    Fill: unsafe fn fill(target: DevicePtr, size_bytes: u64, value: u8, stream: StreamHandle) -> ()
        => ("{target:?} + {size_bytes} bytes, {value:#04x}, {stream:?}");
    LaunchHost: unsafe fn launch_host(function: HostFunction, stream: StreamHandle) -> ()
        => ("{}, {:?}, {stream:?}", function.name, function.accesses);
    NoteAccess: safe fn note_access(stream: StreamHandle, accesses: &[Access]) -> ()
        => ("{stream:?}, {accesses:?}");
}

impl Call {
    /// As the trait spells it.
    pub fn name(self) -> &'static str {
        FALLIBLE_CALLS[self as usize]
    }

    /// The call of that name.
    ///
    /// # Panics
    /// If there is none: a misspelt name would never match, and a test would prove nothing.
    pub fn named(name: &str) -> Call {
        let call = Call::ALL.into_iter().find(|call| call.name() == name);
        call.unwrap_or_else(|| panic!("the driver has no fallible call '{name}'"))
    }
}

/// One value for each call.
#[derive(Debug)]
pub(super) struct PerCall<T>([T; Call::ALL.len()]);

impl<T> PerCall<T> {
    /// Each call that `value` has something to say of, by name.
    pub(super) fn by_name<V>(&self, value: impl Fn(&T) -> Option<V>) -> BTreeMap<&'static str, V> {
        let named = Call::ALL.into_iter().zip(&self.0);
        named.filter_map(|(call, kept)| Some((call.name(), value(kept)?))).collect()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl PerCall<u64> {
    /// The counts of calls that were made.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.by_name(|&count| (count > 0).then_some(count))
    }
}

impl<T: Default> Default for PerCall<T> {
    fn default() -> PerCall<T> {
        PerCall(std::array::from_fn(|_| T::default()))
    }
}

impl<T> Index<Call> for PerCall<T> {
    type Output = T;

    fn index(&self, call: Call) -> &T {
        &self.0[call as usize]
    }
}

impl<T> IndexMut<Call> for PerCall<T> {
    fn index_mut(&mut self, call: Call) -> &mut T {
        &mut self.0[call as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call with a default in the trait would not be missed by the compiler.
    #[test]
    fn the_list_has_each_call_of_the_trait_in_its_order() {
        let (_, of_trait) = include_str!("../driver.rs").split_once("pub trait Driver").unwrap();
        let names = of_trait.split("fn ").skip(1).filter_map(|text| text.split('(').next());
        let others = ["properties", "now_us", "wants_accesses"];
        let fallible = names.filter(|name| !others.contains(name));
        assert!(fallible.eq(FALLIBLE_CALLS));
    }

    #[test]
    fn each_call_has_its_own_name_and_place() {
        let mut places = PerCall::<u64>::default();
        for (number, name) in (1..).zip(FALLIBLE_CALLS) {
            assert_eq!(Call::named(name).name(), name);
            places[Call::named(name)] += number;
        }
        assert!(places.values().copied().eq(1..=FALLIBLE_CALLS.len() as u64));
    }
}
