//! Libraries that are opened when they are first used.

use std::ffi::{CStr, CString, c_void};

use crate::Error;

/// Declares the functions of a library, as a structure of pointers, and how to get it: `get` opens the library once,
/// for as long as the process lives. While it cannot be opened, each call retries: it may be installed meanwhile.
macro_rules! functions {
    ($(#[$attribute:meta])* $table:ident, $library:literal, $packages:literal {
        $($name:ident($($argument:ty),*) $(-> $result:ty)?;)*
    }) => {
        $(#[$attribute])*
        pub struct $table { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?),* }

        impl $table {
            pub fn get() -> Result<&'static $table, crate::Error> {
                static TABLE: std::sync::OnceLock<$table> = std::sync::OnceLock::new();
                if let Some(table) = TABLE.get() {
                    return Ok(table);
                }
                let library = load::Library::open($library, $packages)?;
                // SAFETY: the library's header gives its function of this name this type.
                let table = unsafe { $table::with(|name| library.find(name)) }?;
                Ok(TABLE.get_or_init(|| table))
            }

            /// A table of the functions found by name.
            ///
            /// # Safety
            /// A found symbol is a function of the type that the table gives it, and stays.
            pub unsafe fn with(
                find: impl Fn(&'static str) -> Result<*mut c_void, crate::Error>,
            ) -> Result<$table, crate::Error> {
                Ok($table {
                    // SAFETY: the caller guarantees it.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                            find(stringify!($name))?,
                        )
                    }),*
                })
            }
        }
    };
}

pub(super) struct Library {
    handle: *mut c_void,
    name: &'static str,
    packages: &'static str,
}

impl Library {
    pub(super) fn open(name: &'static str, packages: &'static str) -> Result<Library, Error> {
        let path = CString::new(name).unwrap_or_default();
        // SAFETY: the path ends in a zero byte. Loading the library executes its constructors, as with one that is
        // linked.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if !handle.is_null() {
            return Ok(Library {
                handle,
                name,
                packages,
            });
        }
        // SAFETY: it gives a string that lives until this thread's next call, or nothing.
        let reason = unsafe { libc::dlerror().as_ref() }.map_or_else(String::new, |first| {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(first) }
                .to_string_lossy()
                .into_owned()
        });
        Err(Error::NoLibrary {
            name,
            packages,
            reason,
        })
    }

    /// The address of a function, never null. The library is never closed.
    pub(super) fn find(&self, function: &'static str) -> Result<*mut c_void, Error> {
        let name = CString::new(function).unwrap_or_default();
        // SAFETY: the handle is open, the name ends in a zero byte.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(Error::OldLibrary {
                name: self.name,
                packages: self.packages,
                function,
            });
        }
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = Library::open("libnobody.so.1", "libnobody1").err().unwrap();
        let text = error.to_string();
        assert!(
            text.starts_with("libnobody.so.1 cannot be loaded (libnobody.so.1: "),
            "{text}"
        );
        assert!(
            text.ends_with("; install rdma-core (on Debian: libnobody1) or do without RDMA"),
            "{text}"
        );
        let library = Library::open("libc.so.6", "libc6").unwrap();
        assert!(library.find("getpid").is_ok());
        assert_eq!(
            library.find("get_nobody").unwrap_err().to_string(),
            "libc.so.6 has no function get_nobody; install a later rdma-core (on Debian: libc6)"
        );
    }
}
