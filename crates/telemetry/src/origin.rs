//! Decides whether a web page of another site may have caused a request.
//!
//! A browser on an operator's machine sends requests for any page that it shows, with the operator's address and with
//! remembered logins. So every listener checks every request, whatever its method, before a path gets it. Browsers say
//! where a request comes from (`Origin`, `Sec-Fetch-Site`, `Referer`); if that is another site, only what is cheap and
//! reveals nothing is answered. DNS rebinding defeats this check, because the page's own name then points at this
//! machine; so without a login the request must use a host name that no outsider can control.

use std::fmt;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, Method, Request, Version, header};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const REQUESTED_WITH: HeaderName = HeaderName::from_static("x-requested-with");

/// The start of a browser's `User-Agent`, a header that scripts cannot change for another origin without a preflight
/// request.
const BROWSERS: &[u8] = b"Mozilla/";

/// Which pages may send requests to a listener, and under which host names it answers.
#[derive(Clone, Debug, Default)]
pub struct OriginPolicy {
    /// Origins such as `https://grafana.example`; `*` allows all.
    pub allowed: Vec<String>,
    /// With [`HostNames::Own`]: the listener's own name, besides those that no outsider can control.
    pub own_name: Option<String>,
    pub names: HostNames,
    /// Paths that a link on any page may open.
    pub links: LinkablePaths,
    /// Paths with side effects on GET, which neither a link nor an address given to a person may open.
    pub acting: ActingPaths,
    /// Paths that accept a token in the address (`?token=`), which proves that no page of another site caused the
    /// request.
    pub tokens_in_address: Vec<String>,
    /// The setting that lists `allowed`, for the cure in a refusal; empty if the listener has none.
    pub setting: String,
}

/// The host names under which a listener answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostNames {
    /// Any: a login is required, a path decides by itself, or everyone may do everything.
    #[default]
    Any,
    /// Only names that no outsider can point at this machine.
    Own,
}

/// Paths that are as cheap as a page and have no side effects.
#[derive(Clone, Debug, Default)]
pub struct LinkablePaths(Vec<String>);

/// Paths with side effects on GET: they take messages, or run what their address says. When a browser opens an address
/// from an e-mail, a bookmark or another program, it reports that no page caused it (`Sec-Fetch-Site: none`), so the
/// origin check is not enough here.
#[derive(Clone, Debug, Default)]
pub struct ActingPaths(Vec<String>);

/// Why a request is refused, displayed as a sentence with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginRefusal {
    /// The host name is missing, given twice, or invalid.
    Host(&'static str),
    /// A host name that an outsider may control.
    Name,
    /// A page of this origin, if it is known, and the setting that could allow it.
    Page { origin: Option<String>, setting: String },
    /// A browser that does not say which page it was.
    Silent,
    /// A browser that opens a path with side effects as a page.
    Opened,
}

impl ActingPaths {
    /// Paths as in a list of routes: a segment in braces matches any segment.
    pub fn new(paths: impl IntoIterator<Item = String>) -> ActingPaths {
        ActingPaths(paths.into_iter().collect())
    }

    pub fn have(&self, path: &str) -> bool {
        let is = |known: &String| {
            let (mut known, mut given) = (known.split('/'), path.split('/'));
            loop {
                match (known.next(), given.next()) {
                    (None, None) => return true,
                    (Some(known), Some(given)) if known == given || known.starts_with('{') => {}
                    _ => return false,
                }
            }
        };
        self.0.iter().any(is)
    }
}

impl LinkablePaths {
    /// Exact paths; one that ends in a slash includes everything below it.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a str>) -> LinkablePaths {
        LinkablePaths(paths.into_iter().map(str::to_owned).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn have(&self, path: &str) -> bool {
        let is = |link: &String| match link.len() > 1 && link.ends_with('/') {
            true => path.starts_with(link.as_str()),
            false => path == link,
        };
        self.0.iter().any(is)
    }
}

impl OriginPolicy {
    /// For a listener without a login at this address.
    pub fn of_own_machine(address: &str) -> OriginPolicy {
        OriginPolicy {
            own_name: host_of(address).map(str::to_ascii_lowercase),
            names: HostNames::Own,
            ..OriginPolicy::default()
        }
    }

    /// Checks the head of a request. `is_encrypted`: it arrived over TLS.
    pub fn judge<B>(&self, request: &Request<B>, is_encrypted: bool) -> Result<(), OriginRefusal> {
        let headers = request.headers();
        let host = host(request)?;
        if self.names == HostNames::Own && !self.has_name(host) {
            return Err(OriginRefusal::Name);
        }
        // Browsers do not add this by themselves, and pages of other origins cannot.
        let is_bearer = |value: &[u8]| value.len() > 7 && value[..7].eq_ignore_ascii_case(b"bearer ");
        if headers
            .get(header::AUTHORIZATION)
            .is_some_and(|value| is_bearer(value.as_bytes()))
            || self.has_token(request.uri().path(), request.uri().query())
        {
            return Ok(());
        }
        if is_read(request.method()) && self.acting.have(request.uri().path()) && is_navigation(headers) {
            return Err(OriginRefusal::Opened);
        }
        self.comes_from(request, host, is_encrypted)
    }

    fn comes_from<B>(&self, request: &Request<B>, host: Option<&str>, is_encrypted: bool) -> Result<(), OriginRefusal> {
        let headers = request.headers();
        let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if let Some(origin) = text(&header::ORIGIN) {
            // A page of the same name without TLS is another origin. The browser reports that where this listener does
            // not see the scheme.
            let is_own = || {
                is_of(origin, host)
                    && (!is_encrypted || origin.starts_with("https://"))
                    && matches!(text(&FETCH_SITE), None | Some("same-origin" | "none"))
            };
            return match self.allows(origin) || is_own() {
                true => Ok(()),
                false => Err(self.page(Some(origin))),
            };
        }
        let is_link = is_read(request.method()) && self.links.have(request.uri().path());
        let referer = text(&header::REFERER).and_then(origin_of);
        let from = || Err(self.page(referer));
        match text(&FETCH_SITE) {
            Some("same-origin" | "none") => return Ok(()),
            // A site includes all ports, so a page of another service on this machine is on the same site too.
            Some(_) => {
                let is_opened = text(&FETCH_MODE) == Some("navigate") && text(&FETCH_DEST) == Some("document");
                return match is_link && is_opened || self.allows("*") {
                    true => Ok(()),
                    false => from(),
                };
            }
            None => {}
        }
        if is_link || self.allows("*") {
            return Ok(());
        }
        match referer {
            Some(origin) if self.allows(origin) => return Ok(()),
            Some(origin) if is_of(origin, host) && (!is_encrypted || origin.starts_with("https://")) => return Ok(()),
            Some(_) => return from(),
            None => {}
        }
        // Browsers send these headers only where they trust the connection, and old browsers never do.
        let is_browser = text(&header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(BROWSERS));
        match !is_browser || headers.contains_key(REQUESTED_WITH) {
            true => Ok(()),
            false => Err(OriginRefusal::Silent),
        }
    }

    fn page(&self, origin: Option<&str>) -> OriginRefusal {
        OriginRefusal::Page {
            origin: origin.map(str::to_owned),
            setting: self.setting.clone(),
        }
    }

    fn allows(&self, origin: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed == "*" || allowed == origin)
    }

    fn has_token(&self, path: &str, query: Option<&str>) -> bool {
        let is_given = |part: &str| part.strip_prefix("token=").is_some_and(|token| !token.is_empty());
        query.is_some_and(|query| query.split('&').any(is_given))
            && self.tokens_in_address.iter().any(|known| known == path)
    }

    /// Whether only the owner of this machine can point the name at it. The owner of a domain controls every name with
    /// a dot, except in reserved domains.
    pub fn has_name(&self, host: Option<&str>) -> bool {
        let Some(name) = host.map(bare) else { return true };
        is_address(&name)
            || !name.contains('.')
            || name.ends_with(".localhost")
            || name.ends_with(".internal")
            || Some(&name) == self.own_name.as_ref()
    }
}

impl fmt::Display for OriginRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OriginRefusal::Host(problem) => write!(f, "{problem}"),
            OriginRefusal::Name => write!(
                f,
                "without a login this listener answers only under localhost, an IP address or the host of its address; use one of them, or configure a login"
            ),
            OriginRefusal::Page {
                origin: Some(origin),
                setting,
            } => {
                let origin: String = origin.chars().take(200).collect();
                write!(f, "a page of {origin} may not send this; ")?;
                if !setting.is_empty() {
                    write!(f, "add its origin to {setting}, or ")?;
                }
                write!(f, "send a token (Authorization: Bearer …)")
            }
            OriginRefusal::Page { origin: None, .. } => write!(
                f,
                "a page of another site may not send this; open the address yourself, or send a token (Authorization: Bearer …)"
            ),
            OriginRefusal::Silent => write!(
                f,
                "this browser does not say which page sends this; use HTTPS or localhost, or send the header X-Requested-With or a token (Authorization: Bearer …)"
            ),
            OriginRefusal::Opened => write!(
                f,
                "this path has side effects, so neither a link nor the address bar may open it; use the console, thalweg or curl, or send a token (Authorization: Bearer …)"
            ),
        }
    }
}

fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

/// A request to show a page or a frame, whoever caused it. Scripts cannot make one.
fn is_navigation(headers: &HeaderMap) -> bool {
    let is = |name: &HeaderName, values: &[&str]| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| values.contains(&value))
    };
    is(&FETCH_MODE, &["navigate", "nested-navigate"])
        || is(&FETCH_DEST, &["document", "iframe", "frame", "embed", "object"])
}

/// The single host that a request names, with its port.
fn host<B>(request: &Request<B>) -> Result<Option<&str>, OriginRefusal> {
    let mut given = request.headers().get_all(header::HOST).iter();
    let (first, more) = (given.next(), given.next());
    if more.is_some() {
        return Err(OriginRefusal::Host(
            "the request has more than one header Host; send one",
        ));
    }
    let named = match first.map(|value| value.to_str()) {
        None => None,
        Some(Ok(value)) if value.is_empty() || is_host(value) => Some(value),
        Some(_) => {
            return Err(OriginRefusal::Host(
                "the header Host is not a host name; send host or host:port",
            ));
        }
    };
    let of_address = request.uri().authority().map(|authority| authority.as_str());
    match (of_address, named) {
        (Some(address), Some(host)) if !address.eq_ignore_ascii_case(host) => Err(OriginRefusal::Host(
            "the address and the header Host name different hosts; send one",
        )),
        (Some(address), _) => Ok(Some(address)),
        (None, None) if request.version() == Version::HTTP_11 => {
            Err(OriginRefusal::Host("the request has no header Host; send it"))
        }
        (None, named) => Ok(named.filter(|host| !host.is_empty())),
    }
}

fn is_host(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte);
    text.bytes().all(plain)
}

/// The scheme is not compared: it differs behind a proxy that ends TLS.
fn is_of(origin: &str, host: Option<&str>) -> bool {
    let Some((scheme, own)) = origin.split_once("://") else {
        return false;
    };
    let Some(host) = host else {
        return false;
    };
    let usual = match scheme {
        "https" => ":443",
        _ => ":80",
    };
    own.trim_end_matches(usual)
        .eq_ignore_ascii_case(host.trim_end_matches(usual))
}

/// The origin of a page's address.
fn origin_of(referer: &str) -> Option<&str> {
    let (scheme, rest) = referer.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    referer.get(..scheme.len() + "://".len() + end)
}

/// The bare name, without port, brackets and final dot.
fn bare(host: &str) -> String {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        // An IPv6 address in brackets ends with a bracket.
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let name = name.trim_matches(['[', ']']).trim_end_matches('.');
    name.to_ascii_lowercase()
}

fn is_address(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

/// The host of `host:port`, if there is one.
pub fn host_of(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    (port.parse::<u16>().is_ok() && !host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests;
