//! `/debug/pprof/heap`: a profile of live memory by allocating code, sampled by jemalloc if it was started with
//! profiling. Names and lines are in the profile, so the tools that read it need no copy of the binary.

mod dump;
mod segments;

use std::collections::HashMap;
use std::ffi::c_void;
use std::io::{self, BufReader};
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use axum::response::Response;
use thalweg_kit::{blocking, clock};
use tokio::sync::Mutex;

use super::profile::{ProfileFunction, ProfileHead, ProfileMapping, ProfileWriter};
use super::{SymbolCacheGuard, download, gzipped, problem};
use dump::LiveStack;
use segments::LoadedSegment;

const OFF: &str = "heap profiling is off; start Thalweg with the environment variable \
    MALLOC_CONF=prof:true,prof_active:true,lg_prof_sample:19 to turn it on (it costs about one percent)";

/// The allocator's own functions end every stack. Readers leave out what this matches and everything it calls, so that
/// memory is shown at the function that requested it.
const ALLOCATOR: &str = "_rjem_.*|prof_.*|malloc|calloc|realloc|posix_memalign|aligned_alloc|.*GlobalAlloc.*|\
    (.*::)?(__rust_|__rdl_|__rg_)?(alloc|realloc|alloc_zeroed)|alloc_impl(_runtime)?|(try_)?allocate(_in|_zeroed)?|\
    (try_)?with_capacity_in|finish_grow|grow_(one|amortized|exact)|box_new_uninit|exchange_malloc";

/// Many profiles at once would each load the debug information and free it while others use it.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

pub async fn profile() -> Response {
    if !dump::is_sampling() {
        return problem(StatusCode::NOT_IMPLEMENTED, OFF);
    }
    let turn = ONE_AT_A_TIME.lock().await;
    // Writes and reads a file in memory, and looks up symbols in the debug information.
    let taken = blocking::spawn(move || {
        let _turn = turn;
        let _names = SymbolCacheGuard;
        take().map_err(|error| error.to_string())
    });
    match taken.await {
        Ok(Ok(bytes)) => download("heap", bytes),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error.to_string()),
    }
}

fn take() -> io::Result<Vec<u8>> {
    let stacks = dump::parse(BufReader::new(dump::take()?))?;
    let segments = segments::loaded();
    gzipped(&encode(&stacks, &segments, symbols_at, clock::wall()))
}

/// A function at an address.
struct ResolvedSymbol {
    name: String,
    system_name: String,
    /// Empty without debug information.
    file: String,
    /// Zero without debug information.
    line: u32,
}

/// The functions at a return address, inlined ones before those that they are inlined into.
fn symbols_at(return_address: u64) -> Vec<ResolvedSymbol> {
    let mut symbols = Vec::new();
    // It looks one byte before the address, where the call is.
    backtrace::resolve(return_address as *mut c_void, |symbol| {
        let Some(name) = symbol.name() else { return };
        let file = symbol.filename().map(|path| path.to_string_lossy().into_owned());
        symbols.push(ResolvedSymbol {
            name: format!("{name:#}"),
            system_name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
            file: file.unwrap_or_default(),
            line: symbol.lineno().unwrap_or(0),
        });
    });
    symbols
}

/// One sample for each stack: its live bytes. `symbols_at` is called once for each return address.
fn encode(
    stacks: &[LiveStack],
    segments: &[LoadedSegment],
    symbols_at: impl Fn(u64) -> Vec<ResolvedSymbol>,
    now: SystemTime,
) -> Vec<u8> {
    let mut profile = ProfileWriter::new(&ProfileHead {
        values: &[("inuse_space", "bytes")],
        period_type: ("space", "bytes"),
        period: 0,
        begin: now,
        duration: Duration::ZERO,
    });
    profile.drop_frames(ALLOCATOR);
    let mut mappings: Vec<ProfileMapping<'_>> = (1..).zip(segments).map(mapping).collect();
    let mut locations: HashMap<u64, u64> = HashMap::new();
    for stack in stacks {
        let ids = stack.addresses.iter().map(|address| {
            *locations.entry(*address).or_insert_with(|| {
                // The call ends where it returns to.
                let call = address.saturating_sub(1);
                let mut loaded = segments.iter().zip(&mut mappings);
                let loaded = loaded.find(|(segment, _)| segment.range.contains(&call));
                location(&mut profile, call, loaded, &symbols_at(*address))
            })
        });
        let ids: Vec<u64> = ids.collect();
        profile.sample(&ids, &[stack.bytes], None);
    }
    for mapping in &mappings {
        profile.mapping(mapping);
    }
    profile.finish()
}

fn mapping((id, segment): (u64, &LoadedSegment)) -> ProfileMapping<'_> {
    ProfileMapping {
        id,
        file: &segment.file,
        build_id: &segment.build_id,
        has_functions: false,
        has_files: false,
        has_lines: false,
        has_inlined: false,
    }
}

/// Writes the location of an address in memory, and notes in the mapping what is known of it.
fn location(
    profile: &mut ProfileWriter,
    address: u64,
    loaded: Option<(&LoadedSegment, &mut ProfileMapping<'_>)>,
    symbols: &[ResolvedSymbol],
) -> u64 {
    let line = |symbol: &ResolvedSymbol| {
        let function = ProfileFunction {
            name: &symbol.name,
            system_name: &symbol.system_name,
            file: &symbol.file,
        };
        (profile.function(&function), symbol.line)
    };
    let lines: Vec<(u64, u32)> = symbols.iter().map(line).collect();
    let Some((segment, mapping)) = loaded else {
        return profile.location(0, address, &lines);
    };
    mapping.has_functions |= !symbols.is_empty();
    mapping.has_files |= symbols.iter().any(|symbol| !symbol.file.is_empty());
    mapping.has_lines |= symbols.iter().any(|symbol| symbol.line > 0);
    mapping.has_inlined |= symbols.len() > 1;
    profile.location(mapping.id, address.wrapping_sub(segment.bias), &lines)
}

fn failed(error: &str) -> Response {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the heap profile could not be taken: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::UNIX_EPOCH;

    use super::super::decoded::DecodedProfile;
    use super::*;

    fn symbol(name: &str, file: &str, line: u32) -> ResolvedSymbol {
        ResolvedSymbol {
            name: name.to_owned(),
            system_name: format!("_{name}"),
            file: file.to_owned(),
            line,
        }
    }

    fn segment(file: &str, start: u64, bias: u64) -> LoadedSegment {
        LoadedSegment {
            range: start..start + 0x100,
            bias,
            file: file.to_owned(),
            build_id: "ab12".to_owned(),
        }
    }

    #[test]
    fn stacks_become_samples_whose_locations_are_those_of_the_files() {
        let stack = |addresses: &[u64], bytes| LiveStack {
            addresses: addresses.to_vec(),
            bytes,
        };
        let stacks = [stack(&[0x5010, 0x7020], 300), stack(&[0x9999, 0x7020], 7)];
        let segments = [segment("/program", 0x5000, 0x4000), segment("/lib", 0x7000, 0x7000)];
        let asked = RefCell::new(Vec::new());
        let symbols_at = |address| {
            asked.borrow_mut().push(address);
            match address {
                0x5010 => vec![symbol("push", "vec.rs", 3), symbol("fill", "a.rs", 9)],
                0x7020 => vec![symbol("start", "", 0)],
                _ => vec![],
            }
        };
        let now = UNIX_EPOCH + Duration::from_nanos(5);
        let profile = DecodedProfile::of(&encode(&stacks, &segments, symbols_at, now));
        assert_eq!(asked.into_inner(), [0x5010, 0x7020, 0x9999]);
        assert_eq!(profile.value_types, [["inuse_space", "bytes"]]);
        assert_eq!(profile.period_type, ["space", "bytes"]);
        assert_eq!((profile.period, profile.time_nanos, profile.duration_nanos), (0, 5, 0));
        assert_eq!(profile.drop_frames, ALLOCATOR);
        let places = profile.locations.iter();
        let places: Vec<(u64, u64)> = places.map(|place| (place.mapping, place.address)).collect();
        assert_eq!(places, [(1, 0x100f), (2, 0x1f), (0, 0x9998)]);
        let [first, second] = &profile.samples[..] else {
            panic!("{profile:?}");
        };
        assert_eq!(profile.names(first), ["push", "fill", "start"]);
        assert_eq!(profile.names(second), ["start"]);
        assert_eq!((&first.values[..], &second.values[..]), (&[300][..], &[7][..]));
        assert_eq!(profile.functions[0].system_name, "_push");
        let mappings = profile.mappings.iter();
        let mappings: Vec<_> = mappings.map(|file| (file.id, file.file.as_str(), file.has)).collect();
        let expected = [(1, "/program", [true; 4]), (2, "/lib", [true, false, false, false])];
        assert_eq!(mappings, expected);
    }

    #[test]
    fn this_function_has_a_name() {
        let code: fn() = this_function_has_a_name;
        // A return address comes after the call.
        let symbols = symbols_at(code as usize as u64 + 1);
        let named = |symbol: &ResolvedSymbol| symbol.name.contains("this_function_has_a_name");
        assert!(symbols.iter().any(named), "{} symbols", symbols.len());
    }
}
