//! Reports for people: tables, charts and a page, made from what was measured.
//!
//! ```text
//! table.rs   a table as text and as Markdown
//! number.rs  numbers with the digits that are known
//! chart.rs   charts as SVG
//! html.rs    one self-contained page
//! ```
//! For `tacit workload` and for the benchmarks alike. Nothing is written anywhere: all of it is
//! text that others print or keep.

mod chart;
mod html;
mod markup;
mod number;
mod table;

pub use chart::{Bar, Bars, Chart, Series, SeriesMark};
pub use html::{HtmlPage, PagePart};
pub use number::{grouped, number};
pub use table::{DataTable, TableCell};
