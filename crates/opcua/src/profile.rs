//! How much at a time a kind of server takes: named by the user, or detected from what the server says of itself.

/// The names that the configuration accepts.
pub(crate) const NAMES: [&str; 8] = [
    "auto",
    "unknown",
    "high-performance",
    "ignition",
    "kepware",
    "siemens-s7-1200",
    "siemens-s7-1500",
    "prosys",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// The server says nothing of itself.
    Auto,
    /// It says something that no profile knows.
    Unknown,
    HighPerformance,
    Ignition,
    Kepware,
    SiemensS71200,
    SiemensS71500,
    Prosys,
}

/// Whether items may be created with a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filters {
    Yes,
    No,
    /// The first call decides.
    Try,
}

/// The figures of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub name: Name,
    pub items_per_call: usize,
    pub browse_in_flight: usize,
    /// Further items are polled.
    pub items_max: Option<usize>,
    pub filters: Filters,
    /// Whether `items_per_call` grows while calls succeed.
    pub adaptive: bool,
}

/// What a server says of itself (i=2263, i=2261, i=2264).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerProduct {
    pub manufacturer: String,
    pub product: String,
    pub version: String,
}

impl std::fmt::Display for ServerProduct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = [&self.manufacturer, &self.product, &self.version];
        let said: Vec<&str> = parts
            .into_iter()
            .map(String::as_str)
            .filter(|part| !part.is_empty())
            .collect();
        f.write_str(&said.join(" "))
    }
}

impl Name {
    /// `None` for the empty text: detect.
    pub fn parse(text: &str) -> Option<Name> {
        const ALL: [Name; 8] = [
            Name::Auto,
            Name::Unknown,
            Name::HighPerformance,
            Name::Ignition,
            Name::Kepware,
            Name::SiemensS71200,
            Name::SiemensS71500,
            Name::Prosys,
        ];
        ALL.into_iter().find(|name| name.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Name::Auto => "auto",
            Name::Unknown => "unknown",
            Name::HighPerformance => "high-performance",
            Name::Ignition => "ignition",
            Name::Kepware => "kepware",
            Name::SiemensS71200 => "siemens-s7-1200",
            Name::SiemensS71500 => "siemens-s7-1500",
            Name::Prosys => "prosys",
        }
    }

    /// `None` if the server's information could not be read.
    pub fn detect(product: Option<&ServerProduct>) -> Name {
        let Some(product) = product else { return Name::Auto };
        let manufacturer = product.manufacturer.to_lowercase();
        let name = product.product.to_lowercase();
        let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        if has(&manufacturer, &["inductive automation"]) || has(&name, &["ignition", "eclipse milo"]) {
            Name::Ignition
        } else if has(&manufacturer, &["ptc", "kepware"]) || has(&name, &["kepserverex", "kepware"]) {
            Name::Kepware
        } else if has(&manufacturer, &["siemens"]) && has(&name, &["1200"]) {
            Name::SiemensS71200
        } else if has(&manufacturer, &["siemens"]) && has(&name, &["1500"]) {
            Name::SiemensS71500
        } else if has(&manufacturer, &["prosys"]) {
            Name::Prosys
        } else {
            Name::Unknown
        }
    }

    pub fn profile(self) -> Profile {
        let (items_per_call, browse_in_flight, items_max, filters) = match self {
            Name::Auto | Name::Unknown => (50, 5, None, Filters::Try),
            Name::HighPerformance => (1000, 50, None, Filters::Yes),
            Name::Ignition => (100, 20, None, Filters::Yes),
            Name::Kepware => (1000, 40, None, Filters::Yes),
            Name::SiemensS71200 => (100, 10, Some(1000), Filters::No),
            Name::SiemensS71500 => (500, 20, Some(10_000), Filters::Yes),
            Name::Prosys => (800, 60, None, Filters::Yes),
        };
        let adaptive = matches!(self, Name::Auto | Name::Unknown);
        Profile {
            name: self,
            items_per_call,
            browse_in_flight,
            items_max,
            filters,
            adaptive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(manufacturer: &str, product: &str) -> ServerProduct {
        ServerProduct {
            manufacturer: manufacturer.to_owned(),
            product: product.to_owned(),
            version: "1".to_owned(),
        }
    }

    #[test]
    fn servers_are_recognised_by_what_they_say() {
        for (manufacturer, name, profile) in [
            ("Inductive Automation", "x", "ignition"),
            ("", "Eclipse Milo SDK", "ignition"),
            ("PTC Inc.", "", "kepware"),
            ("", "KEPServerEX 6", "kepware"),
            ("Siemens AG", "SIMATIC S7-1200", "siemens-s7-1200"),
            ("Siemens AG", "SIMATIC S7-1500", "siemens-s7-1500"),
            ("Siemens AG", "other", "unknown"),
            ("Prosys OPC Ltd", "Simulation", "prosys"),
            ("NodeOPCUA", "x", "unknown"),
            ("", "", "unknown"),
        ] {
            assert_eq!(Name::detect(Some(&product(manufacturer, name))).as_str(), profile);
        }
        assert_eq!(Name::detect(None), Name::Auto);
    }

    #[test]
    fn every_accepted_name_has_a_profile() {
        for name in NAMES {
            assert_eq!(Name::parse(name).unwrap().profile().name.as_str(), name);
        }
        assert_eq!(Name::parse(""), None);
    }
}
