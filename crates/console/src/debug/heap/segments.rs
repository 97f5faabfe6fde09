//! Where the files of the program are in memory. Out come their segments: the program's own first, then those of the
//! libraries. Addresses that belong to none are of code that was made at run time.

use std::ops::Range;

use findshlibs::{Segment, SharedLibrary, TargetSharedLibrary};

/// A part of a file that is mapped into memory.
pub struct LoadedSegment {
    pub range: Range<u64>,
    /// An address in memory less its address in the file.
    pub bias: u64,
    pub file: String,
    /// In hexadecimal; empty if the linker wrote none.
    pub build_id: String,
}

pub fn loaded() -> Vec<LoadedSegment> {
    let mut segments = Vec::new();
    TargetSharedLibrary::each(|library| {
        let bias = library.virtual_memory_bias().0 as u64;
        let file = library.name().to_string_lossy().into_owned();
        let build_id = library.id().map(|id| id.to_string()).unwrap_or_default();
        for segment in library.segments().filter(Segment::is_load) {
            let start = bias.wrapping_add(segment.stated_virtual_memory_address().0 as u64);
            segments.push(LoadedSegment {
                range: start..start.saturating_add(segment.len() as u64),
                bias,
                file: file.clone(),
                build_id: build_id.clone(),
            });
        }
    });
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_is_in_a_segment_of_this_program() {
        let code: fn() -> Vec<LoadedSegment> = loaded;
        let address = code as usize as u64;
        let segments = loaded();
        let program = std::env::current_exe().unwrap();
        let own = segments.iter().find(|segment| segment.range.contains(&address));
        assert_eq!(own.unwrap().file, program.to_string_lossy());
        assert_eq!(segments[0].file, program.to_string_lossy());
        assert!(own.unwrap().build_id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
