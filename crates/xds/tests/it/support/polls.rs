//! Clients of REST-JSON polling, over HTTP/1.1 and HTTP/2.

use std::collections::BTreeMap;

use bytes::Bytes;
use chancery_xds::BodyEncoder;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;

pub(crate) const REST_CDS: &str = "/v3/discovery:clusters";
pub(crate) const REST_EDS: &str = "/v3/discovery:endpoints";

/// Returns a configuration whose resources are texts. The text `bad` has no JSON form.
pub(crate) fn rest_config() -> chancery_xds::Config {
    let json = BodyEncoder::new(|type_url, body| match body {
        b"bad" => Err("there is no descriptor".to_owned()),
        body => {
            let text = String::from_utf8_lossy(body);
            Ok(json!({"@type": type_url.as_str(), "text": text}).to_string())
        }
    });
    chancery_xds::Config { json, ..chancery_xds::Config::default() }
}

/// Returns a request with a node.
pub(crate) fn poll(version: &str, names: &[&str]) -> String {
    json!({"version_info": version, "resource_names": names, "node": {"id": "n1"}}).to_string()
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.headers["content-type"], "application/json", "{self:?}");
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Returns the text of an error.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap().to_owned()
    }

    /// Returns the version and the texts of the resources of a successful response.
    pub(crate) fn content(&self) -> (String, String) {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        let json = self.json();
        let texts = json["resources"].as_array().unwrap().iter();
        let texts: Vec<&str> = texts.map(|it| it["text"].as_str().unwrap()).collect();
        (json["version_info"].as_str().unwrap().to_owned(), texts.join(" "))
    }

    #[track_caller]
    pub(crate) fn expect_not_modified(&self) {
        assert_eq!((self.status, self.body.len()), (304, 0), "{self:?}");
    }
}

/// An HTTP/1.1 connection.
pub(crate) struct Http1(pub(crate) TcpStream);

impl Http1 {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self(TcpStream::connect(server.address).await.unwrap())
    }

    pub(crate) async fn send(&mut self, path: &str, body: &str) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: chancery\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Reply {
        self.send(path, body).await;
        self.reply().await
    }

    /// Sends a poll with a token.
    pub(crate) async fn post_as(&mut self, path: &str, body: &str, token: &str) -> Reply {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: chancery\r\nauthorization: Bearer {token}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        self.0.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
        self.reply().await
    }

    /// Reads a response.
    pub(crate) async fn reply(&mut self) -> Reply {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("no response in time")
    }

    async fn read(&mut self) -> Reply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("closed"));
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let len = match status {
            304 => 0,
            _ => headers["content-length"].parse().unwrap(),
        };
        let mut body = vec![0; len];
        self.0.read_exact(&mut body).await.unwrap();
        Reply { status, headers, body }
    }

    /// Returns whether the server closes the connection.
    pub(crate) async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        let read = self.0.read_to_end(&mut rest);
        tokio::time::timeout(PATIENCE, read).await.is_ok()
    }
}

/// Sends a poll over HTTP/2.
pub(crate) async fn post2(
    client: &mut h2::client::SendRequest<Bytes>,
    path: &str,
    body: &str,
) -> Reply {
    let request = http::Request::post(format!("http://chancery{path}"))
        .header("content-type", "application/json")
        .body(())
        .unwrap();
    let mut ready = client.clone().ready().await.unwrap();
    let (response, mut send) = ready.send_request(request, false).unwrap();
    // The server may refuse the request, and close the stream, before it reads the body. The response then has the reason.
    drop(send.send_data(Bytes::from(body.to_owned()), true));
    let read = async {
        let response = response.await.unwrap();
        let (parts, mut body) = response.into_parts();
        let mut bytes = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            bytes.extend_from_slice(&data);
        }
        let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
        let headers =
            parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        Reply { status: parts.status.as_u16(), headers, body: bytes }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("no response in time")
}
