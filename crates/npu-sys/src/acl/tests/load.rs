//! What opening says when the library or the device is missing, wrong or too old.

use std::path::Path;
use std::sync::Arc;

use super::rig::Rig;
use super::standin::{Copied, library, loaded_part, with_settings};
use crate::acl::AclDriver;
use crate::acl::sys::Api;
use crate::driver::Driver;
use crate::error::{ErrorKind, OpenError};
use crate::types::HostMapping;

/// Opens a device of the stand-in, of a part of it, or of another library that lacks its functions.
fn open(library: &Path, index: u32) -> Result<Arc<AclDriver>, OpenError> {
    // SAFETY: the stand-in does what the vendor's library does; all others are refused.
    unsafe { AclDriver::open_from(library, index) }
}

fn refusal(library: &Path) -> OpenError {
    open(library, 0).expect_err("it is to be refused")
}

#[test]
fn a_missing_library_is_named_with_the_hint() {
    let error = refusal(Path::new("/nowhere/libascendcl.so"));
    assert!(matches!(error, OpenError::NoLibrary { name: "libascendcl.so", .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("tried /nowhere/libascendcl.so: "), "{text}");
    assert!(text.contains("set_env.sh"), "{text}");
}

#[test]
fn the_environment_names_the_library() {
    let test = "acl::tests::load::the_environment_names_the_library";
    let missing = "/nowhere/named.so";
    let path = library().to_str().unwrap();
    for named in [missing, path] {
        with_settings(test, &[("SMARTSWAP_ACL_LIBRARY", named)], || {
            if std::env::var("SMARTSWAP_ACL_LIBRARY").unwrap() == missing {
                assert!(AclDriver::open(0).unwrap_err().to_string().contains(missing));
            } else {
                assert_eq!(AclDriver::device_count().unwrap(), 1);
                assert!(AclDriver::open(0).unwrap().properties().has_virtual_memory);
            }
        });
    }
}

#[test]
fn files_that_are_no_library_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let check = |name: &str, bytes: &[u8], expect: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = refusal(&path);
        assert!(matches!(error, OpenError::NotALibrary { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with(&path.display().to_string()) && text.contains(expect), "{text}");
    };
    check("text", b"a text, longer than the header of a library is", "it is not an ELF file");
    check("empty", b"", "it is not an ELF file");
    let whole = loaded_part(std::fs::read(library()).unwrap());
    check("start", &whole[..20], "it is cut off after 20 bytes");
    check("header", &whole[..64], "it is cut off: 64 bytes are there of at least");
    check("half", &whole[..whole.len() / 2], "it is cut off: ");
    check("last", &whole[..whole.len() - 1], "it is cut off: ");
    let (theirs, name) = match cfg!(target_arch = "aarch64") {
        true => (62, "it is for x86_64, this process is aarch64"),
        false => (183, "it is for aarch64, this process is x86_64"),
    };
    let mut other = whole;
    other[18] = theirs;
    check("other", &other, name);
}

#[test]
fn another_library_lacks_the_first_function() {
    let error = refusal(Path::new("libm.so.6"));
    let OpenError::MissingSymbol { symbol, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*symbol, "aclInit");
}

#[test]
fn each_required_function_is_named_when_it_is_missing() {
    let required = Api::SYMBOLS.iter().filter(|(_, is_optional)| !is_optional);
    let mut count = 0;
    for &(name, _) in required {
        let copied = Copied::without(&[name]);
        let error = refusal(&copied.path);
        let OpenError::MissingSymbol { path, symbol } = &error else { panic!("{error:?}") };
        assert_eq!((*symbol, path.as_str()), (name, copied.path.to_str().unwrap()));
        count += 1;
    }
    assert!(count >= 25, "{count} functions are required");
}

#[test]
fn a_device_that_is_not_there_is_refused_with_the_count() {
    let error = open(library(), 7).unwrap_err();
    assert!(matches!(error, OpenError::NoDevice { index: 7, count: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("sees 1 of them"), "{error}");
    assert!(open(library(), u32::MAX).is_err());
}

#[test]
fn a_library_that_does_not_start_says_why() {
    let test = "acl::tests::load::a_library_that_does_not_start_says_why";
    with_settings(test, &[("ACL_STANDIN_MEMORY", "plenty")], || {
        let OpenError::Driver(error) = refusal(library()) else { panic!() };
        assert_eq!((error.call, error.code, error.kind), ("open", 100000, ErrorKind::Invalid));
        let text = error.to_string();
        assert!(text.contains("aclInit gave ACL_ERROR_INVALID_PARAM"), "{text}");
        assert!(text.contains("ACL_STANDIN_MEMORY"), "{text}");
    });
}

#[test]
fn a_device_may_be_opened_more_than_once() {
    let copied = Copied::without(&[]);
    let (first, second) = (Rig::open(&copied.path), Rig::open(&copied.path));
    let buffer = first.buffer(first.unit);
    first.fill(buffer.start, first.unit, 9);
    assert_eq!(first.bytes(buffer.start, 8), [9; 8]);
    drop(second);
    assert_eq!(first.bytes(buffer.start, 8), [9; 8]);
    drop(first);
    copied.ledger().assert_empty();
}

#[test]
fn properties_are_the_librarys() {
    let copied = Copied::without(&[]);
    let driver = open(&copied.path, 0).unwrap();
    let properties = driver.properties();
    assert_eq!(properties.name, "SmartSwap stand-in");
    assert_eq!(properties.total_bytes, copied.ledger().capacity_bytes);
    assert_eq!(properties.granularity_bytes, 2 << 20);
    assert!(properties.is_host_addressable);
    assert_eq!(properties.host_mapping, HostMapping::AllocatedForAll);
    assert!(properties.driver_version.contains("runtime "), "{}", properties.driver_version);
    assert!(format!("{driver:?}").contains("SmartSwap stand-in"));
}
