// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds the tests of the sources themselves (`tests/tidy`), and nothing else: style that a
//! compiler does not check, licences, links and commands in the documents.
