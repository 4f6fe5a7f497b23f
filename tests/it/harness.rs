//! What the fuzz targets and the tests share.

pub mod oracle;
