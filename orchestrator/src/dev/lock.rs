//! One `lapse dev` per home, so that none stops what another has started.
//!
//! Relies on the system to release the lock of a process that ended, however it ended. Never: waits.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use anyhow::Context;

use super::Error;

/// Held until it is dropped. The file stays; removing it would let two hold locks of the same name.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes `home/lock`; makes `home` if it is not there.
    ///
    /// # Errors
    /// [`Error::Running`] if another process holds it; else what the file system said.
    pub(super) fn take(home: &Path) -> anyhow::Result<Lock> {
        fs::create_dir_all(home).with_context(|| format!("make {}", home.display()))?;
        let path = home.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Error::Running(home.to_owned()).into()),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("lock {}", path.display()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_has_one_holder_at_a_time() {
        let home = std::env::temp_dir().join(format!("lapse-lock-{}", uuid::Uuid::now_v7()));
        let first = Lock::take(&home).expect("nobody has it");

        let refused = Lock::take(&home).err().expect("somebody has it");
        drop(first);
        let again = Lock::take(&home);
        fs::remove_dir_all(&home).expect("the home can be removed");

        assert!(matches!(refused.downcast_ref(), Some(Error::Running(at)) if *at == home));
        assert!(again.is_ok());
    }
}
