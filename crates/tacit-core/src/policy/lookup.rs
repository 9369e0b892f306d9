//! stub
use super::Rule;
use crate::flow::Flow;
/// stub
#[derive(Debug)]
pub struct Index(Vec<Rule>);
/// stub
#[derive(Debug)]
pub struct Lookup {
    /// r
    pub rule: Option<usize>,
}
impl Index {
    /// n
    #[must_use]
    pub fn new(rules: &[Rule]) -> Self {
        Self(rules.to_vec())
    }
    /// l
    #[must_use]
    pub fn lookup(&self, flow: &Flow) -> Lookup {
        Lookup {
            rule: self.0.iter().position(|r| {
                r.fixed
                    .as_ref()
                    .is_some_and(|f| flow.listen.as_ref().is_some_and(|l| f.listen.contains(l)))
            }),
        }
    }
}
