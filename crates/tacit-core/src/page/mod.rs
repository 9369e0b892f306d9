//! Formats reports as tables, charts and HTML pages.
//!
//! ```text
//! table.rs   a table as text and as Markdown
//! number.rs  numbers, rounded to about three significant digits
//! chart.rs   charts as SVG
//! html.rs    one page that loads no other files
//! ```
//!
//! `tacit workload` and the benchmarks use this module. The module returns text and writes no file.

mod chart;
mod html;
mod markup;
mod number;
mod table;

pub use chart::{Bar, Bars, Chart, Series, SeriesMark};
pub use html::{HtmlPage, PagePart};
pub use number::{grouped, number};
pub use table::{DataTable, TableCell};
