//! What a job hears of the device's memory that has a share of it.
//!
//! Only for jobs whose memory is not managed; what managed jobs hear is in [`super::backed`].

use super::hooks;
use crate::session;

hooks! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) |real| {
        let result = real();
        if result.ok() && !free.is_null() && !total.is_null() {
            // SAFETY: the driver wrote both.
            let said = unsafe { (free.read(), total.read()) };
            if let Some((seen, of)) = session::memory_view(said.0 as u64, said.1 as u64) {
                // SAFETY: as above.
                unsafe { free.write(seen as usize) };
                // SAFETY: as above.
                unsafe { total.write(of as usize) };
            }
        }
        result
    }
}
