//! Tests of the sources themselves.
