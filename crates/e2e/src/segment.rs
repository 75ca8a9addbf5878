//! to be filled
