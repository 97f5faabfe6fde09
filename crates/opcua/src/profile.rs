//! The profile of a kind of server: how much it accepts at a time. The user names it, or it is detected from what the
//! server reports about itself.

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
pub(crate) enum ProfileName {
    /// The server reports nothing about itself.
    Auto,
    /// No profile matches its report.
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
pub(crate) enum FilterSupport {
    Yes,
    No,
    /// The first call decides.
    Try,
}

/// The settings of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub name: ProfileName,
    pub items_per_call: usize,
    pub browse_in_flight: usize,
    /// Further items are polled.
    pub items_max: Option<usize>,
    pub filters: FilterSupport,
    /// Whether `items_per_call` grows while calls succeed.
    pub adaptive: bool,
}

/// What a server reports about itself (i=2263, i=2261, i=2264).
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

impl ProfileName {
    /// `None` for the empty text, which means detection.
    pub fn parse(text: &str) -> Option<ProfileName> {
        const ALL: [ProfileName; 8] = [
            ProfileName::Auto,
            ProfileName::Unknown,
            ProfileName::HighPerformance,
            ProfileName::Ignition,
            ProfileName::Kepware,
            ProfileName::SiemensS71200,
            ProfileName::SiemensS71500,
            ProfileName::Prosys,
        ];
        ALL.into_iter().find(|name| name.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            ProfileName::Auto => "auto",
            ProfileName::Unknown => "unknown",
            ProfileName::HighPerformance => "high-performance",
            ProfileName::Ignition => "ignition",
            ProfileName::Kepware => "kepware",
            ProfileName::SiemensS71200 => "siemens-s7-1200",
            ProfileName::SiemensS71500 => "siemens-s7-1500",
            ProfileName::Prosys => "prosys",
        }
    }

    /// `product` is `None` if the server's information could not be read.
    pub fn detect(product: Option<&ServerProduct>) -> ProfileName {
        let Some(product) = product else {
            return ProfileName::Auto;
        };
        let manufacturer = product.manufacturer.to_lowercase();
        let name = product.product.to_lowercase();
        let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
        if has(&manufacturer, &["inductive automation"]) || has(&name, &["ignition", "eclipse milo"]) {
            ProfileName::Ignition
        } else if has(&manufacturer, &["ptc", "kepware"]) || has(&name, &["kepserverex", "kepware"]) {
            ProfileName::Kepware
        } else if has(&manufacturer, &["siemens"]) && has(&name, &["1200"]) {
            ProfileName::SiemensS71200
        } else if has(&manufacturer, &["siemens"]) && has(&name, &["1500"]) {
            ProfileName::SiemensS71500
        } else if has(&manufacturer, &["prosys"]) {
            ProfileName::Prosys
        } else {
            ProfileName::Unknown
        }
    }

    pub fn profile(self) -> Profile {
        let (items_per_call, browse_in_flight, items_max, filters) = match self {
            ProfileName::Auto | ProfileName::Unknown => (50, 5, None, FilterSupport::Try),
            ProfileName::HighPerformance => (1000, 50, None, FilterSupport::Yes),
            ProfileName::Ignition => (100, 20, None, FilterSupport::Yes),
            ProfileName::Kepware => (1000, 40, None, FilterSupport::Yes),
            ProfileName::SiemensS71200 => (100, 10, Some(1000), FilterSupport::No),
            ProfileName::SiemensS71500 => (500, 20, Some(10_000), FilterSupport::Yes),
            ProfileName::Prosys => (800, 60, None, FilterSupport::Yes),
        };
        let adaptive = matches!(self, ProfileName::Auto | ProfileName::Unknown);
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
            assert_eq!(
                ProfileName::detect(Some(&product(manufacturer, name))).as_str(),
                profile
            );
        }
        assert_eq!(ProfileName::detect(None), ProfileName::Auto);
    }

    #[test]
    fn every_accepted_name_has_a_profile() {
        for name in NAMES {
            assert_eq!(ProfileName::parse(name).unwrap().profile().name.as_str(), name);
        }
        assert_eq!(ProfileName::parse(""), None);
    }
}
