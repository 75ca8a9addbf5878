// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An answer before it is one of hyper's.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};

use crate::dashboard::{File, POLICY};

/// No page from elsewhere takes an answer for a part of its own.
const RESOURCE_POLICY: &str = "cross-origin-resource-policy";
const OPENER_POLICY: &str = "cross-origin-opener-policy";

/// An answer.
pub(crate) struct Answer {
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    allow: bool,
    authenticate: bool,
}

impl Answer {
    pub(crate) fn new(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
            allow: false,
            authenticate: false,
        }
    }

    pub(crate) fn of_type(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        let answer = Self::new(StatusCode::OK, body);
        Self {
            content_type,
            ..answer
        }
    }

    pub(crate) fn json(body: String) -> Self {
        Self::of_type("application/json", body)
    }

    pub(crate) fn file(file: &'static File) -> Self {
        Self::of_type(file.content_type, file.text)
    }

    pub(crate) fn only_reading() -> Self {
        let answer = Self::new(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD alone\n");
        Self {
            allow: true,
            ..answer
        }
    }

    pub(crate) fn no_token() -> Self {
        let answer = Self::new(StatusCode::UNAUTHORIZED, "this needs the token\n");
        Self {
            authenticate: true,
            ..answer
        }
    }

    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(self.body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        let always = [
            (CONTENT_TYPE.as_str(), self.content_type),
            (CACHE_CONTROL.as_str(), "no-store"),
            (X_CONTENT_TYPE_OPTIONS.as_str(), "nosniff"),
            (CONTENT_SECURITY_POLICY.as_str(), POLICY),
            (REFERRER_POLICY.as_str(), "no-referrer"),
            (RESOURCE_POLICY, "same-origin"),
            (OPENER_POLICY, "same-origin"),
        ];
        let allow = self.allow.then_some((ALLOW.as_str(), "GET, HEAD"));
        let authenticate = self
            .authenticate
            .then_some((WWW_AUTHENTICATE.as_str(), "Bearer"));
        for (name, value) in always.into_iter().chain(allow).chain(authenticate) {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
