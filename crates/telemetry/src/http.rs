//! How components add paths to the one HTTP listener without knowing it.

use axum::Router;
use axum::http::Method;

/// What a request must prove to use a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Whatever the path itself asks for: it has credentials of its own, and those of the listener say nothing of it.
    Own,
    /// Anyone who can connect.
    Open,
    /// Role `read`, whatever the method: for questions that are too long for an address and come by POST.
    Read,
    /// Role `read`; requests that change something need `write`.
    ReadWrite,
    /// Role `admin`.
    Admin,
}

/// Routes that belong together.
pub struct Mount {
    pub router: Router,
    pub access: Access,
    /// Whether the paths also appear under `http.root_path`, where clients of the reference system look for them.
    pub under_root_path: bool,
}

/// Implemented by whatever serves HTTP paths.
pub trait HttpRoutes: Send + Sync {
    fn mounts(&self) -> Vec<Mount>;

    /// What `/endpoints` says of these routes: each path, as far as it is fixed, and what it is for. The listener refuses
    /// to start when two components declare one path, and the console offers its SQL box when `/api/sql` is declared.
    fn endpoints(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// What this request asks for, if that is not what its mount says: the router takes a segment of a path as a whole,
    /// so actions behind a colon share a mount. `path` is as the client wrote it, escapes included.
    fn access(&self, _method: &Method, _path: &str) -> Option<Access> {
        None
    }

    /// Paths whose token can stand in the address, which no page of another site knows.
    fn tokens_in_address(&self) -> Vec<String> {
        Vec::new()
    }

    /// Paths that do something on GET: they take messages, or run what their address says. No link opens them
    /// ([`ActingPaths`](crate::ActingPaths)). A segment in braces is any one.
    fn acting_reads(&self) -> Vec<String> {
        Vec::new()
    }

    /// Paths that limit the size of bodies themselves.
    fn own_body_limits(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Paths at and below which the listener's own refusals are `application/problem+json`, too.
    fn problem_paths(&self) -> Vec<&'static str> {
        Vec::new()
    }
}
