//! Memory with keys that a device refuses to revoke: functions that simulate one.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::*;
use crate::ffi::Verbs;

thread_local! {
    /// How often the keys of a registration are still refused to be revoked, and how often they were revoked.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
    static ENDED: Cell<u32> = const { Cell::new(0) };
}

unsafe extern "C" fn alloc_pd(_: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    ptr::dangling_mut()
}

unsafe extern "C" fn ends(_: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: c_int,
) -> *mut ffi::ibv_mr {
    Box::into_raw(Box::new(ffi::ibv_mr {
        context: ptr::null_mut(),
        pd,
        addr,
        length,
        handle: 1,
        lkey: 2,
        rkey: 3,
    }))
}

unsafe extern "C" fn dereg_mr(registered: *mut ffi::ibv_mr) -> c_int {
    if REFUSALS.get() > 0 {
        REFUSALS.set(REFUSALS.get() - 1);
        return libc::EINVAL;
    }
    ENDED.set(ENDED.get() + 1);
    // SAFETY: it is of `reg_mr`, and it is taken back once.
    drop(unsafe { Box::from_raw(registered) });
    0
}

unsafe extern "C" fn never() {
    unreachable!("a function that these tests have no use for");
}

fn registration() -> Arc<Registration> {
    let find = |name: &str| {
        Ok(match name {
            "ibv_alloc_pd" => alloc_pd as *mut c_void,
            "ibv_dealloc_pd" | "ibv_close_device" => ends as *mut c_void,
            "ibv_reg_mr" => reg_mr as *mut c_void,
            "ibv_dereg_mr" => dereg_mr as *mut c_void,
            _ => never as *mut c_void,
        })
    };
    // SAFETY: those that are called have the types of the table, but for pointers to something else.
    let verbs: &'static Verbs = Box::leak(Box::new(unsafe { Verbs::with(find) }.unwrap()));
    let domain = Domain::new(&Device::of(verbs)).unwrap();
    let region = Region::memory(4096, false).unwrap();
    Registration::new(&domain, &region, 0, 4096, Rights::READ).unwrap()
}

#[test]
fn keys_that_are_not_taken_back_are_not_said_to_be() {
    let registration = registration();
    REFUSALS.set(1);
    let (registration, error) = Registration::end(registration).unwrap_err();
    let text = error.to_string();
    let beginning = "cannot withdraw a key of memory from test0: Invalid argument";
    assert!(text.starts_with(beginning), "{text}");
    assert_eq!((registration.remote(8).key, ENDED.get()), (3, 0));
    // A second owner could still use it.
    let other = registration.clone();
    let (registration, _) = Registration::end(registration).unwrap_err();
    drop(other);
    assert_eq!(ENDED.get(), 0);
    assert!(Registration::end(registration).is_ok());
    assert_eq!(ENDED.get(), 1);
}

#[test]
fn memory_of_keys_that_are_never_taken_back_stays() {
    let registration = registration();
    let region = registration.region().clone();
    let address = region.address(0, 1).unwrap() as usize;
    REFUSALS.set(1);
    drop(registration);
    drop(region);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.contains(&format!("{address:x}-")), "{maps}");
    assert_eq!(ENDED.get(), 0);
}
