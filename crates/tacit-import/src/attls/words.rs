//! Defines the AT-TLS language: the statements, their attributes, and the values and defaults of
//! the attributes.
//!
//! ```text
//!   TTLSRule ─> TTLSGroupAction ───────> TTLSGroupAdvancedParms
//!            ─> TTLSEnvironmentAction ─> TTLSKeyringParms, TTLSCipherParms, TTLSSignatureParms,
//!            │                           TTLSEnvironmentAdvancedParms, TTLSGskAdvancedParms
//!            ─> TTLSConnectionAction ──> TTLSCipherParms, TTLSSignatureParms,
//!            │                           TTLSConnectionAdvancedParms
//!            ─> IpAddr…, Port…, IpTimeCondition
//! ```
//!
//! If the name of an attribute ends with `Ref`, the attribute refers to a named statement. An
//! example is `TTLSGroupActionRef`. In place of the attribute, a policy may also contain the
//! statement itself, as a block.

/// A kind of statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// `TTLSRule`.
    Rule,
    /// `TTLSGroupAction`.
    Group,
    /// `TTLSGroupAdvancedParms`.
    GroupAdvanced,
    /// `TTLSEnvironmentAction`.
    Environment,
    /// `TTLSEnvironmentAdvancedParms`.
    EnvironmentAdvanced,
    /// `TTLSConnectionAction`.
    Connection,
    /// `TTLSConnectionAdvancedParms`.
    ConnectionAdvanced,
    /// `TTLSKeyringParms`.
    Keyring,
    /// `TTLSCipherParms`.
    Cipher,
    /// `TTLSSignatureParms`.
    Signature,
    /// `TTLSGskAdvancedParms`.
    Gsk,
    /// `TTLSGskLdapParms`.
    GskLdap,
    /// `TTLSGskOcspParms`.
    GskOcsp,
    /// `TTLSGskHttpCdpParms`.
    GskHttpCdp,
    /// `IpAddr`.
    IpAddr,
    /// `IpAddrSet`.
    IpAddrSet,
    /// `IpAddrGroup`.
    IpAddrGroup,
    /// `PortRange`.
    PortRange,
    /// `PortGroup`.
    PortGroup,
    /// `IpTimeCondition`.
    Time,
    /// `IpFilterPolicy`.
    FilterPolicy,
    /// `IpFilterGroup`.
    FilterGroup,
    /// `IpFilterRule`.
    FilterRule,
    /// `IpServiceGroup`.
    ServiceGroup,
    /// `IpService`.
    Service,
    /// `IpGenericFilterAction`.
    FilterAction,
}

impl Kind {
    /// All kinds, in the order in which the parts of an action are shown.
    pub(super) const ALL: [Self; 26] = [
        Self::Rule,
        Self::Group,
        Self::GroupAdvanced,
        Self::Environment,
        Self::Keyring,
        Self::Cipher,
        Self::Signature,
        Self::EnvironmentAdvanced,
        Self::Gsk,
        Self::GskLdap,
        Self::GskOcsp,
        Self::GskHttpCdp,
        Self::Connection,
        Self::ConnectionAdvanced,
        Self::IpAddr,
        Self::IpAddrSet,
        Self::IpAddrGroup,
        Self::PortRange,
        Self::PortGroup,
        Self::Time,
        Self::FilterPolicy,
        Self::FilterGroup,
        Self::FilterRule,
        Self::ServiceGroup,
        Self::Service,
        Self::FilterAction,
    ];

    /// Its keyword.
    #[must_use]
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Rule => "TTLSRule",
            Self::Group => "TTLSGroupAction",
            Self::GroupAdvanced => "TTLSGroupAdvancedParms",
            Self::Environment => "TTLSEnvironmentAction",
            Self::EnvironmentAdvanced => "TTLSEnvironmentAdvancedParms",
            Self::Connection => "TTLSConnectionAction",
            Self::ConnectionAdvanced => "TTLSConnectionAdvancedParms",
            Self::Keyring => "TTLSKeyringParms",
            Self::Cipher => "TTLSCipherParms",
            Self::Signature => "TTLSSignatureParms",
            Self::Gsk => "TTLSGskAdvancedParms",
            Self::GskLdap => "TTLSGskLdapParms",
            Self::GskOcsp => "TTLSGskOcspParms",
            Self::GskHttpCdp => "TTLSGskHttpCdpParms",
            Self::IpAddr => "IpAddr",
            Self::IpAddrSet => "IpAddrSet",
            Self::IpAddrGroup => "IpAddrGroup",
            Self::PortRange => "PortRange",
            Self::PortGroup => "PortGroup",
            Self::Time => "IpTimeCondition",
            Self::FilterPolicy => "IpFilterPolicy",
            Self::FilterGroup => "IpFilterGroup",
            Self::FilterRule => "IpFilterRule",
            Self::ServiceGroup => "IpServiceGroup",
            Self::Service => "IpService",
            Self::FilterAction => "IpGenericFilterAction",
        }
    }

    /// The kind with this keyword; the case of letters is ignored.
    #[must_use]
    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word().eq_ignore_ascii_case(word))
    }

    /// The attributes that its block may have.
    pub(super) fn attributes(self) -> impl Iterator<Item = &'static Attribute> {
        self.own_attributes().iter().chain(self.shared_attributes())
    }

    /// The attributes that only this kind has.
    fn own_attributes(self) -> &'static [Attribute] {
        match self {
            Self::Rule => RULE,
            Self::Group => GROUP,
            Self::GroupAdvanced => GROUP_ADVANCED,
            Self::Environment => ENVIRONMENT,
            Self::EnvironmentAdvanced => ENVIRONMENT_ADVANCED,
            Self::Connection => CONNECTION,
            Self::ConnectionAdvanced => &[],
            Self::Keyring => KEYRING,
            Self::Cipher => CIPHER,
            Self::Signature => SIGNATURE,
            Self::Gsk => GSK,
            Self::GskLdap => GSK_LDAP,
            Self::GskOcsp => GSK_OCSP,
            Self::GskHttpCdp => GSK_HTTP_CDP,
            Self::IpAddr => IP_ADDR,
            Self::IpAddrSet => IP_ADDR_SET,
            Self::IpAddrGroup => IP_ADDR_GROUP,
            Self::PortRange => PORT_RANGE,
            Self::PortGroup => PORT_GROUP,
            Self::Time => TIME,
            Self::FilterPolicy => FILTER_POLICY,
            Self::FilterGroup => FILTER_GROUP,
            Self::FilterRule => FILTER_RULE,
            Self::ServiceGroup => SERVICE_GROUP,
            Self::Service => SERVICE,
            Self::FilterAction => FILTER_ACTION,
        }
    }

    /// The attributes that it shares with another kind, such as connections with environments.
    fn shared_attributes(self) -> &'static [Attribute] {
        match self {
            Self::Environment | Self::Connection => ACTION,
            Self::EnvironmentAdvanced | Self::ConnectionAdvanced => ADVANCED,
            Self::FilterPolicy => FILTER_GROUP,
            Self::FilterRule => SERVICE_GROUP,
            _ => &[],
        }
    }

    /// Its attribute of this name; the case of letters is ignored.
    #[must_use]
    pub(super) fn attribute(self, word: &str) -> Option<&'static Attribute> {
        self.attributes().find(|attribute| attribute.word.eq_ignore_ascii_case(word))
    }

    /// The kinds that may be blocks inside this kind.
    pub(super) fn parts(self) -> impl Iterator<Item = Self> {
        self.attributes().filter_map(|attribute| match attribute.form {
            Form::Block(kind) => Some(kind),
            _ => None,
        })
    }
}

/// One attribute of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    /// Its spelling in the manual.
    pub word: &'static str,
    /// The form of its value.
    pub form: Form,
    /// Whether all fields are used if it is repeated, or only the last.
    pub repeats: bool,
    /// Its default. Connection actions have no defaults.
    pub default: Option<&'static str>,
}

impl Attribute {
    /// Whether its value must not be shown.
    #[must_use]
    pub(super) fn is_secret(&self) -> bool {
        ["KeyringPw", "GSK_LDAP_USER_PW"].contains(&self.word)
    }
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `On` or `Off`.
    Switch,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// A number in this range.
    Number(u32, u32),
    /// The rest of the line.
    Text,
    /// Addresses.
    Address,
    /// Ports.
    Ports,
    /// The name of a statement of that kind.
    Ref(Kind),
    /// A statement of that kind, named or not.
    Block(Kind),
}

const fn attribute(word: &'static str, form: Form) -> Attribute {
    Attribute { word, form, repeats: false, default: None }
}

const fn text(word: &'static str) -> Attribute {
    attribute(word, Form::Text)
}

const fn switch(word: &'static str, default: &'static str) -> Attribute {
    Attribute { default: Some(default), ..attribute(word, Form::Switch) }
}

const fn choice(word: &'static str, words: &'static [&'static str]) -> Attribute {
    // The first value is the default.
    let default = Some(words[0]);
    Attribute { default, ..attribute(word, Form::Choice(words)) }
}

const fn number(word: &'static str, max: u32, default: &'static str) -> Attribute {
    Attribute { default: Some(default), ..attribute(word, Form::Number(0, max)) }
}

const fn list(word: &'static str, form: Form) -> Attribute {
    Attribute { repeats: true, ..attribute(word, form) }
}

const fn block(word: &'static str, kind: Kind) -> Attribute {
    attribute(word, Form::Block(kind))
}

const fn reference(word: &'static str, kind: Kind) -> Attribute {
    attribute(word, Form::Ref(kind))
}

const USE: &[&str] = &["Off", "Optional", "Required"];
const MATCH: &[&str] = &["Optional", "Required"];

const RULE: &[Attribute] = &[
    Attribute { default: Some("All"), ..attribute("LocalAddr", Form::Address) },
    reference("LocalAddrRef", Kind::IpAddr),
    reference("LocalAddrSetRef", Kind::IpAddrSet),
    reference("LocalAddrGroupRef", Kind::IpAddrGroup),
    Attribute { default: Some("All"), ..attribute("RemoteAddr", Form::Address) },
    reference("RemoteAddrRef", Kind::IpAddr),
    reference("RemoteAddrSetRef", Kind::IpAddrSet),
    reference("RemoteAddrGroupRef", Kind::IpAddrGroup),
    Attribute { default: Some("0"), ..attribute("LocalPortRange", Form::Ports) },
    reference("LocalPortRangeRef", Kind::PortRange),
    reference("LocalPortGroupRef", Kind::PortGroup),
    Attribute { default: Some("0"), ..attribute("RemotePortRange", Form::Ports) },
    reference("RemotePortRangeRef", Kind::PortRange),
    reference("RemotePortGroupRef", Kind::PortGroup),
    text("Jobname"),
    text("Userid"),
    attribute("Direction", Form::Choice(&["Inbound", "Outbound", "Both"])),
    Attribute { default: Some("1"), ..attribute("Priority", Form::Number(1, 2_000_000_000)) },
    reference("IpTimeConditionRef", Kind::Time),
    reference("TTLSGroupActionRef", Kind::Group),
    reference("TTLSEnvironmentActionRef", Kind::Environment),
    reference("TTLSConnectionActionRef", Kind::Connection),
];

const TRACE: Attribute = number("Trace", 255, "2");

const GROUP: &[Attribute] = &[
    attribute("TTLSEnabled", Form::Switch),
    switch("CtraceClearText", "Off"),
    TRACE,
    choice("FIPS140", &["Off", "On", "Level1", "Level2", "Level3"]),
    number("GroupUserInstance", 65_535, "0"),
    block("TTLSGroupAdvancedParms", Kind::GroupAdvanced),
    reference("TTLSGroupAdvancedParmsRef", Kind::GroupAdvanced),
];

const GROUP_ADVANCED: &[Attribute] = &[
    choice("SyslogFacility", &["Daemon", "Auth"]),
    text("Envfile"),
    switch("SecondaryMap", "Off"),
];

const ROLES: &[&str] = &["Client", "Server", "ServerWithClientAuth"];

/// What actions on environments and on connections share.
const ACTION: &[Attribute] = &[
    attribute("HandshakeRole", Form::Choice(ROLES)),
    block("TTLSCipherParms", Kind::Cipher),
    reference("TTLSCipherParmsRef", Kind::Cipher),
    block("TTLSSignatureParms", Kind::Signature),
    reference("TTLSSignatureParmsRef", Kind::Signature),
    // If these attributes are not set, those of the group apply.
    attribute("CtraceClearText", Form::Switch),
    attribute("Trace", Form::Number(0, 255)),
];

const ENVIRONMENT: &[Attribute] = &[
    block("TTLSKeyringParms", Kind::Keyring),
    reference("TTLSKeyringParmsRef", Kind::Keyring),
    choice("SuiteBProfile", &["Off", "128", "128Min", "192", "192Min", "All"]),
    block("TTLSEnvironmentAdvancedParms", Kind::EnvironmentAdvanced),
    reference("TTLSEnvironmentAdvancedParmsRef", Kind::EnvironmentAdvanced),
    block("TTLSGskAdvancedParms", Kind::Gsk),
    reference("TTLSGskAdvancedParmsRef", Kind::Gsk),
    number("EnvironmentUserInstance", 65_535, "0"),
];

const CONNECTION: &[Attribute] = &[
    block("TTLSConnectionAdvancedParms", Kind::ConnectionAdvanced),
    reference("TTLSConnectionAdvancedParmsRef", Kind::ConnectionAdvanced),
    number("ConnectionUserInstance", 65_535, "0"),
];

/// What environments and connections may both say.
const ADVANCED: &[Attribute] = &[
    switch("SSLv2", "Off"),
    switch("SSLv3", "Off"),
    switch("TLSv1", "On"),
    switch("TLSv1.1", "On"),
    switch("TLSv1.2", "Off"),
    switch("TLSv1.3", "Off"),
    switch("MiddleBoxCompatMode", "Off"),
    switch("ApplicationControlled", "Off"),
    number("HandshakeTimeout", 600, "10"),
    number("ResetCipherTimer", 1440, "0"),
    text("CertificateLabel"),
    list("ServerCertificateLabel", Form::Text),
    switch("SecondaryMap", "Off"),
    choice("TruncatedHMAC", USE),
    choice("ClientMaxSSLFragment", USE),
    choice("ServerMaxSSLFragment", USE),
    attribute("ClientMaxSSLFragmentLength", Form::Choice(FRAGMENTS)),
    attribute("ServerMaxSSLFragmentLength", Form::Choice(FRAGMENTS)),
    choice("ClientHandshakeSNI", USE),
    choice("ServerHandshakeSNI", USE),
    attribute("ClientHandshakeSNIMatch", Form::Choice(MATCH)),
    attribute("ServerHandshakeSNIMatch", Form::Choice(MATCH)),
    list("ClientHandshakeSNIList", Form::Text),
    list("ServerHandshakeSNIList", Form::Text),
    text("HostReferenceIdDNS"),
    text("HostReferenceIdCN"),
    switch("HostRefWildcardValidation", "Off"),
];

const FRAGMENTS: &[&str] = &["512", "1024", "2048", "4096"];

const ENVIRONMENT_ADVANCED: &[Attribute] = &[
    choice("ClientAuthType", &["Required", "PassThru", "Full", "SAFCheck"]),
    choice("Renegotiation", &["Default", "Disabled", "All", "Abbreviated"]),
    choice("RenegotiationIndicator", &["Optional", "Client", "Server", "Both"]),
    switch("RenegotiationCertCheck", "Off"),
    choice("CertValidationMode", &["Any", "RFC2459", "RFC3280", "RFC5280"]),
    choice("PeerMinCertVersion", &["Any", "3"]),
    number("PeerMinRsaKeySize", 65_535, "1024"),
    number("PeerMinDhKeySize", 65_535, "1024"),
    number("PeerMinDsaKeySize", 65_535, "1024"),
    number("PeerMinEccKeySize", 65_535, "192"),
    choice("ClientEDHGroupSize", &["Legacy", "2048"]),
    choice("ServerEDHGroupSize", &["Legacy", "2048", "Match"]),
    switch("3DesKeyCheck", "Off"),
    switch("ServerScsv", "Off"),
    choice("ClientExtendedMasterSecret", &["On", "Off", "Required"]),
    choice("ServerExtendedMasterSecret", &["On", "Off", "Required"]),
];

const KEYRING: &[Attribute] = &[text("Keyring"), text("KeyringPw"), text("KeyringStashFile")];

const CIPHER: &[Attribute] = &[
    list("V2CipherSuites", Form::Text),
    list("V3CipherSuites", Form::Text),
    list("V3CipherSuites4Char", Form::Text),
];

/// A text with a default.
const fn preset(word: &'static str, default: &'static str) -> Attribute {
    Attribute { default: Some(default), ..text(word) }
}

const fn codes(word: &'static str, default: &'static str) -> Attribute {
    Attribute { repeats: true, default: Some(default), ..text(word) }
}

const SIGNATURES: &str = "0601 0603 0501 0503 0401 0403 0402 0301 0303 0302 0201 0203 0202";

const SIGNATURE: &[Attribute] = &[
    codes("ClientECurves", "0021 0023 0024 0025 0019"),
    codes("ClientKeyShareGroups", "0023"),
    codes("ServerKeyShareGroups", "0023 0024 0025 0029 0030"),
    codes("ServerKexECurves", "0023 0024 0025 0021 0019"),
    codes("SignaturePairs", SIGNATURES),
    list("SignaturePairsCert", Form::Text),
];

const GSK: &[Attribute] = &[
    text("GSK_SYSPLEX_SIDCACHE"),
    text("GSK_V2_SESSION_TIMEOUT"),
    text("GSK_V2_SIDCACHE_SIZE"),
    preset("GSK_V3_SESSION_TIMEOUT", "86400"),
    preset("GSK_V3_SIDCACHE_SIZE", "512"),
    switch("GSK_SESSION_TICKET_CLIENT_ENABLE", "On"),
    preset("GSK_SESSION_TICKET_CLIENT_MAXSIZE", "8192"),
    switch("GSK_SESSION_TICKET_SERVER_ENABLE", "On"),
    preset("GSK_SESSION_TICKET_SERVER_ALGORITHM", "AESCBC128"),
    preset("GSK_SESSION_TICKET_SERVER_COUNT", "2"),
    preset("GSK_SESSION_TICKET_SERVER_KEY_REFRESH", "300"),
    preset("GSK_SESSION_TICKET_SERVER_TIMEOUT", "300"),
    switch("AIACDPPriority", "On"),
    text("MaxSrcRevExtLocValues"),
    text("MaxValidRevExtLocValues"),
    attribute("RevocationSecurityLevel", Form::Choice(&["Low", "Medium", "High"])),
    block("TTLSGskLdapParms", Kind::GskLdap),
    reference("TTLSGskLdapParmsRef", Kind::GskLdap),
    block("TTLSGskOcspParms", Kind::GskOcsp),
    reference("TTLSGskOcspParmsRef", Kind::GskOcsp),
    block("TTLSGskHttpCdpParms", Kind::GskHttpCdp),
    reference("TTLSGskHttpCdpParmsRef", Kind::GskHttpCdp),
];

const GSK_LDAP: &[Attribute] = &[
    list("GSK_LDAP_SERVER", Form::Text),
    text("GSK_LDAP_SERVER_PORT"),
    text("GSK_LDAP_USER"),
    text("GSK_LDAP_USER_PW"),
    text("GSK_CRL_CACHE_TIMEOUT"),
    text("GSK_CRL_SECURITY_LEVEL"),
    text("CRLCacheSize"),
    text("CRLCacheEntryMaxsize"),
    text("CRLCacheExtended"),
    text("CRLCacheTempCRL"),
    text("CRLCacheTempCRLTimeout"),
    text("LDAPResponseTimeout"),
];

const GSK_OCSP: &[Attribute] = &[
    text("OcspUrl"),
    switch("OcspAiaEnable", "Off"),
    text("OcspProxyServerName"),
    preset("OcspProxyServerPort", "80"),
    switch("OcspRetrieveViaGet", "Off"),
    switch("OcspUrlPriority", "On"),
    text("OcspRequestSigkeylabel"),
    preset("OcspRequestSigalg", "0401"),
    text("OcspResponseSigAlgPairs"),
    preset("OcspClientCacheSize", "256"),
    preset("OcspCliCacheEntryMaxsize", "0"),
    switch("OcspNonceGenEnable", "Off"),
    switch("OcspNonceCheckEnable", "Off"),
    preset("OcspNonceSize", "8"),
    preset("OcspResponseTimeout", "15"),
    preset("OcspMaxResponseSize", "20480"),
    choice("OcspServerStapling", &["Off", "Any", "EndEntity"]),
];

const GSK_HTTP_CDP: &[Attribute] = &[
    switch("HttpCdpEnable", "Off"),
    text("HttpCdpProxyServerName"),
    preset("HttpCdpProxyServerPort", "80"),
    preset("HttpCdpResponseTimeout", "15"),
    preset("HttpCdpMaxResponseSize", "204800"),
    preset("HttpCdpCacheSize", "32"),
    preset("HttpCdpCacheEntryMaxsize", "0"),
];

const IP_ADDR: &[Attribute] = &[attribute("Addr", Form::Address)];

const IP_ADDR_SET: &[Attribute] = &[list("Prefix", Form::Address), list("Range", Form::Address)];

const IP_ADDR_GROUP: &[Attribute] = &[
    list("IpAddr", Form::Block(Kind::IpAddr)),
    list("IpAddrRef", Form::Ref(Kind::IpAddr)),
    list("IpAddrSet", Form::Block(Kind::IpAddrSet)),
    list("IpAddrSetRef", Form::Ref(Kind::IpAddrSet)),
];

const PORT_RANGE: &[Attribute] = &[attribute("Port", Form::Ports)];

const PORT_GROUP: &[Attribute] = &[
    list("PortRange", Form::Block(Kind::PortRange)),
    list("PortRangeRef", Form::Ref(Kind::PortRange)),
];

const TIME: &[Attribute] = &[
    text("ConditionTimeRange"),
    text("MonthOfYearMask"),
    list("DayOfMonthMask", Form::Text),
    text("DayOfWeekMask"),
    list("TimeOfDayRange", Form::Text),
    choice("TimeZone", &["Local", "UTC"]),
];

const YES_NO: &[&str] = &["Yes", "No"];

const FILTER_POLICY: &[Attribute] = &[
    attribute("PreDecap", Form::Switch),
    attribute("FilterLogging", Form::Switch),
    attribute("AllowOnDemand", Form::Choice(YES_NO)),
    attribute("ImplicitDiscardAction", Form::Choice(&["Silent", "ICMP"])),
    attribute("FIPS140", Form::Choice(YES_NO)),
    text("NatKeepAliveInterval"),
    list("IpFilterGroup", Form::Block(Kind::FilterGroup)),
    list("IpFilterGroupRef", Form::Ref(Kind::FilterGroup)),
];

/// The filter rules in order; the first that matches decides.
const FILTER_GROUP: &[Attribute] = &[
    list("IpFilterRule", Form::Block(Kind::FilterRule)),
    list("IpFilterRuleRef", Form::Ref(Kind::FilterRule)),
];

const FILTER_RULE: &[Attribute] = &[
    attribute("IpSourceAddr", Form::Address),
    reference("IpSourceAddrRef", Kind::IpAddr),
    reference("IpSourceAddrSetRef", Kind::IpAddrSet),
    reference("IpSourceAddrGroupRef", Kind::IpAddrGroup),
    attribute("IpDestAddr", Form::Address),
    reference("IpDestAddrRef", Kind::IpAddr),
    reference("IpDestAddrSetRef", Kind::IpAddrSet),
    reference("IpDestAddrGroupRef", Kind::IpAddrGroup),
    list("IpServiceGroup", Form::Block(Kind::ServiceGroup)),
    list("IpServiceGroupRef", Form::Ref(Kind::ServiceGroup)),
    reference("IpTimeConditionRef", Kind::Time),
    block("IpGenericFilterAction", Kind::FilterAction),
    reference("IpGenericFilterActionRef", Kind::FilterAction),
    text("IpDynVpnActionRef"),
    text("IpManVpnActionRef"),
    text("IpLocalStartActionRef"),
];

/// What a rule may say without a group too.
const SERVICE_GROUP: &[Attribute] = &[
    list("IpService", Form::Block(Kind::Service)),
    list("IpServiceRef", Form::Ref(Kind::Service)),
];

const SERVICE: &[Attribute] = &[
    text("Protocol"),
    attribute("SourcePortRange", Form::Ports),
    reference("SourcePortRangeRef", Kind::PortRange),
    reference("SourcePortGroupRef", Kind::PortGroup),
    attribute("DestinationPortRange", Form::Ports),
    reference("DestinationPortRangeRef", Kind::PortRange),
    reference("DestinationPortGroupRef", Kind::PortGroup),
    text("Direction"),
    attribute("Routing", Form::Choice(&["Local", "Routed", "Either"])),
    attribute("SecurityClass", Form::Number(0, 255)),
    text("Type"),
    text("Code"),
];

const FILTER_ACTION: &[Attribute] = &[
    attribute("IpFilterAction", Form::Choice(&["Permit", "Deny", "IpSec"])),
    attribute("IpFilterLogging", Form::Choice(&["No", "Yes", "LogPermit", "LogDeny"])),
    attribute("DiscardAction", Form::Choice(&["Silent", "ICMP"])),
];
