//! `tako grow`.

use std::io::Write;

use pmem::{Access, Kind, Region};
use store::Store;

use crate::arguments::Grow;
use crate::failure::{Failure, Outcome};
use crate::mkfs::describe;

pub fn run(arguments: &Grow, out: &mut dyn Write) -> Outcome {
    let pool = &arguments.pool;
    let explain = |error| Failure::Failed(format!("{}: {error}", pool.display()));
    let region = Region::open(pool, Access::ReadWrite)?;
    // Before the file gets longer: a file of something else must stay as it is.
    let superblock = store::read_superblock(&region).map_err(explain)?;
    superblock.check_alone().map_err(explain)?;
    let now = superblock.pool_length;
    let is_device = region.kind() == Kind::DeviceDax;
    drop(region);
    let region = match arguments.size {
        _ if is_device => Region::open(pool, Access::ReadWrite)?,
        None => {
            let sentence = "a pool file needs a size to grow to; add one, such as --size 8G";
            return Err(Failure::Usage(sentence.into()));
        }
        Some(size) if size < now => {
            let pool = pool.display();
            let sentence = format!(
                "{pool} has {now} bytes already, and pools do not shrink; name a larger size"
            );
            return Err(Failure::Failed(sentence));
        }
        Some(size) => Region::lengthen(pool, size)?,
    };
    Store::grow(&region).map_err(explain)?;
    drop(region);
    describe(pool, out)
}
