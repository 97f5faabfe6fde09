//! The interface by which components add paths to the HTTP listener without knowing it.

use axum::Router;
use axum::http::Method;

/// What a request must prove to use a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// The path has its own credentials; the listener's do not apply.
    Own,
    /// Anyone who can connect.
    Open,
    /// Role `read` for every method: for queries that are too long for an address and arrive by POST.
    Read,
    /// Role `read`; requests that change something need `write`.
    ReadWrite,
    /// Role `admin`.
    Admin,
}

/// Routes with common settings.
pub struct Mount {
    pub router: Router,
    pub access: Access,
    /// Whether the paths also appear under `http.root_path`, where clients of the reference system expect them.
    pub under_root_path: bool,
}

/// Implemented by components that serve HTTP paths.
pub trait HttpRoutes: Send + Sync {
    fn mounts(&self) -> Vec<Mount>;

    /// The entries of `/endpoints`: the fixed part of each path, and its purpose. The listener refuses to start when
    /// two components declare the same path, and the console offers its SQL box when `/api/sql` is declared.
    fn endpoints(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The access of this request, if it differs from the mount's: the router matches whole segments, so actions after
    /// a colon share a mount. `path` is as the client wrote it, with escapes.
    fn access(&self, _method: &Method, _path: &str) -> Option<Access> {
        None
    }

    /// Paths that accept a token in the address, which pages of other sites cannot know.
    fn tokens_in_address(&self) -> Vec<String> {
        Vec::new()
    }

    /// Paths with side effects on GET: they take messages, or run what their address says. Links cannot open them
    /// ([`ActingPaths`](crate::ActingPaths)). A segment in braces matches any segment.
    fn acting_reads(&self) -> Vec<String> {
        Vec::new()
    }

    /// Paths that limit the size of bodies themselves.
    fn own_body_limits(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Path prefixes under which the listener's own refusals are `application/problem+json` too.
    fn problem_paths(&self) -> Vec<&'static str> {
        Vec::new()
    }
}
