//! The web console of real processes: each page has the values of the API, and shows and changes nothing that its viewer may not.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may fail, and then says where"
)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use ebla_runtime::Clock;
use ebla_tests::etcd::{Build, EtcdCluster};
use serde_json::Value;

use crate::support::pages::{RESPONSE_MAX, get, send};
use crate::support::{self, Process, Up};

/// The first events of a page's stream.
fn live(address: &str, page: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(RESPONSE_MAX)).unwrap();
    write!(stream, "GET /live?page={page} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&read).contains("data: ") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the stream ended: {}", String::from_utf8_lossy(&read));
        read.extend(buffer.iter().take(count));
    }
    String::from_utf8(read).unwrap()
}

fn json(cluster: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&support::run(cluster, &[arguments, &["-o", "json"]].concat())).unwrap()
}

fn number(value: &Value) -> String {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}")).to_string()
}

/// A running `ebla up` with a table.
struct Fixture {
    _folder: tempfile::TempDir,
    _up: Up,
    http: String,
    cluster: String,
    /// The address of the mounttable.
    names: String,
}

impl Fixture {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fixed = ["--http", "127.0.0.1:0", "--mounttable", "127.0.0.1:0"];
        let up = Up::start(&folder.path().join("data"), &[&fixed, options].concat());
        let (http, cluster) =
            (up.ready()["metrics"].as_str().unwrap().to_owned(), up.addresses.first().unwrap().clone());
        let create = "table create web --family anchor --family contents:maxversions=3 --split m --split t";
        support::run(&cluster, &create.split(' ').collect::<Vec<_>>());
        support::run(&cluster, &["row", "set", "web", "com.<cnn>", "anchor:a&b=<b>CNN</b>"]);
        support::run(&cluster, &["row", "set", "web", "org.x", "contents:=\\x00\\xff"]);
        let names = up.ready()["mounttable"].as_str().unwrap().to_owned();
        let mounted = Command::new(support::ebla())
            .args(["mt", "mount", "apps/one", "127.0.0.1:1", "3600", "--root", &names])
            .output()
            .unwrap();
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        Self { _folder: folder, _up: up, http, cluster, names }
    }
}

#[test]
fn pages_have_the_values_of_the_api() {
    let fixture = Fixture::start(&["--split-load", "12345"]);
    let (http, cluster) = (fixture.http.as_str(), fixture.cluster.as_str());

    let status = json(cluster, &["status"]);
    let overview = get(http, "/");
    assert_eq!(overview.value("verdict"), status["verdict"].as_str().unwrap());
    assert_eq!(overview.value("cluster-id"), status["cluster"].as_str().unwrap());
    assert_eq!(overview.value("cluster-epoch"), number(&status["master_epoch"]));
    assert_eq!(overview.value("cluster-tables"), number(&status["tables"]));
    assert!(overview.value("cluster-tablets").ends_with(&format!("of {} led", number(&status["tablets"]))));
    assert_eq!(overview.value("cluster-master"), status["master"].as_str().unwrap());

    let servers = get(http, "/servers");
    for server in status["servers"].as_array().unwrap() {
        let id = number(&server["id"]);
        assert_eq!(servers.value(&format!("server-{id}-address")), server["bigtable"].as_str().unwrap());
        assert_eq!(servers.value(&format!("server-{id}-state")), server["state"].as_str().unwrap());
        assert_eq!(servers.value(&format!("server-{id}-replicas")), number(&server["replicas"]));
        let one = get(http, &format!("/servers/{id}"));
        assert_eq!((one.value("server-lease").as_str(), one.value("server-answers").as_str()), ("held", "yes"));
        assert!(one.body.contains("This console only shows"), "{}", one.body);
    }

    assert!(get(http, "/tables").values("table").contains(&"web".to_owned()));
    let table = get(http, "/tables/web");
    assert_eq!((table.value("table-tablets").as_str(), table.value("table-families").as_str()), ("3", "2"));
    assert!(table.body.contains("<td>maxversions=3</td>"), "{}", table.body);

    let tablets = get(http, "/tables/web/tablets");
    let listed = json(cluster, &["tablet", "list", "web"]);
    let ids: Vec<String> = listed.as_array().unwrap().iter().map(|tablet| number(&tablet["tablet"])).collect();
    assert_eq!(tablets.values("tablet"), ids);
    assert!(tablets.body.matches("<rect class=\"s").count() >= 3, "a bar of ranges");
    let first = ids.first().unwrap();
    assert!(get(http, &format!("/tables/web/tablets?tablet={first}")).values("event").contains(&"created".to_owned()));

    let location = get(http, "/locate?table=web&key=org.x");
    let found = json(cluster, &["meta", "lookup", "web", "org.x"]);
    assert_eq!(location.value("locate-tablet"), number(&found["tablet"]));
    assert_eq!(location.value("locate-group"), number(&found["group"]));
    assert!(location.body.matches("data-testid=\"hop\"").count() >= 4, "three levels, then the caches");

    let events = get(http, "/events?table=web&n=2");
    assert_eq!(events.body.matches("data-testid=\"event-row\"").count(), 2);
    let rows = get(http, "/tables/web/data?prefix=com.");
    assert_eq!(rows.values("row-key"), ["com.&lt;cnn&gt;"]);
    assert_eq!(rows.values("value"), ["&lt;b&gt;CNN&lt;/b&gt;"]);
    assert_eq!(get(http, "/tables/web/data?start=n&view=hex").values("value"), ["00ff"]);

    assert_eq!(get(http, "/mt?name=apps").values("name"), ["one"]);
    assert!(get(http, "/mt?name=apps").value("lease").starts_with("expires in 3"));
    assert_eq!(send(http, "GET", "/mt?name=/127.0.0.1:1/a", "", "").status, 403, "another server");
    let own = fixture.names.trim_start_matches('/');
    assert_eq!(get(http, &format!("/mt?name=/{own}/apps")).values("name"), ["one"]);
    let settings = get(http, "/config");
    assert_eq!(
        (settings.value("setting-split-load").as_str(), settings.value("origin-split-load").as_str()),
        ("12345", "flag")
    );
    for page in ["/heat", "/slow", "/console.css", "/console.js", "/console.svg"] {
        get(http, page);
    }
    for (page, status) in
        [("/absent", 404), ("/tables/absent", 404), ("/servers/x", 400), ("/servers/99", 404), ("/%zz", 400)]
    {
        assert_eq!(send(http, "GET", page, "", "").status, status, "{page}");
    }
    let event = live(http, "%2Fservers");
    assert!(event.contains("event: parts") && event.contains("server-1-state"), "{event}");
    // The other pages of the port are as they were.
    assert_eq!(get(http, "/healthz").body, "ok\n");
    assert_eq!(send(http, "POST", "/metrics", "", "").status, 405);
}

#[test]
fn pages_are_for_this_machine_and_change_nothing_unless_permitted() {
    let fixture = Fixture::start(&["--servers", "1"]);
    let http = fixture.http.as_str();
    let page = get(http, "/tables/web/data");
    for rule in ["default-src 'self'", "frame-ancestors 'none'", "form-action 'self'"] {
        assert!(page.head.contains(rule), "{}", page.head);
    }
    assert!(page.head.contains("cache-control: no-store") && !page.body.contains("Write a cell"), "{}", page.head);
    // A name of another machine that resolves to this one.
    assert_eq!(send(http, "GET", "/", "Host: evil.example\r\n", "").status, 403);
    let origin = format!("Origin: http://{http}\r\n");
    let cell = "key=k&column=anchor%3Aq&value=v";
    assert_eq!(send(http, "POST", "/tables/web/data", &origin, cell).status, 403, "it only shows");
    drop(fixture);

    let fixture = Fixture::start(&["--servers", "1", "--console-admin"]);
    let (http, cluster) = (fixture.http.as_str(), fixture.cluster.as_str());
    assert!(get(http, "/tables/web/data").body.contains("Write a cell"));
    for headers in ["", "Origin: http://evil.example\r\n", "Origin: null\r\n"] {
        assert_eq!(send(http, "POST", "/tables/web/data", headers, cell).status, 403, "{headers}");
    }
    let origin = format!("Origin: http://{http}\r\n");
    let written = send(http, "POST", "/tables/web/data", &origin, cell);
    assert!(written.status == 303 && written.head.contains("location: /tables/web/data?prefix=k"), "{}", written.head);
    assert!(support::run(cluster, &["row", "get", "web", "k"]).contains('v'));
    let refused = send(http, "POST", "/tables/web/data", &origin, "key=k&column=absent%3Aq&value=v");
    assert!(refused.status == 404 && refused.value("failure").contains("absent"), "{}", refused.body);
    let drain = send(http, "POST", "/servers/1/drain", &origin, "");
    assert!([400, 503].contains(&drain.status), "the only server cannot be drained: {}", drain.body);
    assert!(drain.body.contains("data-testid=\"failure\""), "{}", drain.body);
}

#[test]
fn a_browser_shows_every_page() {
    let has_browser = |python: &Path| {
        let found = Command::new(python).args(["-c", "import playwright"]).output();
        found.is_ok_and(|output| output.status.success()) && Command::new("chromium").arg("--version").output().is_ok()
    };
    let Some(python) = support::python().filter(|python| has_browser(python) && Build::Debian.program().is_ok()) else {
        println!("skipped: no browser; `make browser-tools` prepares one");
        return;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/browser/console.py");
    let output = Command::new(&python).args([script, support::ebla(), "--short"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && said.contains("all done");
    assert!(passed, "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `ebla token` in a folder.
fn token(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new(support::ebla()).arg("token").args(arguments).arg("--dir").arg(folder).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn with_access_control_a_viewer_sees_what_the_token_permits() {
    if let Err(skip) = Build::Debian.program() {
        println!("skipped: {skip}");
        return;
    }
    support::block_on(guarded());
}

async fn guarded() {
    let folder = tempfile::tempdir().unwrap();
    let (base, tokens) = (folder.path().to_owned(), folder.path().join("tokens"));
    token(&tokens, &["init"]);
    let issue = |name: &str| {
        let for_cluster = ["--issuer", "https://login.example.org", "--audience", "ebla"];
        token(&tokens, &[&["issue", name, "--for", "1h"], &for_cluster[..]].concat())
    };
    let etcd = EtcdCluster::start(1, Build::Debian).await.unwrap();
    let endpoints = etcd.endpoints().join(",");
    let start = |role: &str, options: &[&str]| {
        let data = base.join(role).display().to_string();
        let fixed = [role, "--etcd", &endpoints, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", &data];
        let all: Vec<&OsStr> = fixed.iter().chain(options).map(OsStr::new).collect();
        Process::start(&base.join(format!("{role}-process")), &all)
    };
    let keys = tokens.join("token-keys.json").display().to_string();
    let master = start("master", &["--replicas", "1"]);
    let access = [
        "--token-issuer",
        "https://login.example.org",
        "--token-audience",
        "ebla",
        "--administrators",
        "subject:admin",
    ];
    let server = start("tablet-server", &[&["--token-keys", &keys], &access[..]].concat());
    let at = |process: &Process, key: &str| process.ready[key].as_str().unwrap().to_owned();
    let (http, cluster) = (at(&server, "metrics"), at(&server, "bigtable"));
    assert!(get(&at(&master, "metrics"), "/").body.contains("console is at the HTTP port of each tablet server"));

    let (admin, reader) = (issue("admin"), issue("reader"));
    let as_admin = base.join("admin.token");
    std::fs::write(&as_admin, &admin).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(support::ebla());
        command.args(arguments).arg("--insecure-token");
        command.env("EBLA_ADDR", &cluster).env("EBLA_TOKEN_FILE", &as_admin);
        command.output().unwrap()
    };
    let created = run(&["table", "create", "web", "--family", "f"]);
    assert!(created.status.success(), "{created:?}");
    let granted = run(&["iam", "set", "web", "--add", "roles/bigtable.reader=subject:reader"]);
    assert!(granted.status.success(), "{granted:?}");

    let pages = [
        "/",
        "/servers",
        "/servers/1",
        "/tables",
        "/tables/web",
        "/tables/web/tablets",
        "/tables/web/data",
        "/locate",
        "/locate?table=web&key=a",
        "/events",
        "/config",
        "/heat",
        "/heat/web",
        "/slow",
    ];
    let with = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let status = |page: &str, headers: &str| send(&http, "GET", page, headers, "").status;
    for page in pages {
        let refused = send(&http, "GET", page, "", "");
        assert_eq!(refused.status, 401, "{page} without a token");
        assert!(!refused.body.contains("web") || page.contains("web"), "{page}: {}", refused.body);
        assert_eq!(status(page, &with(&admin)), 200, "{page} as an administrator");
    }
    let as_reader = with(&reader);
    let clock = Clock::system();
    let granted = clock.monotonic();
    while status("/tables/web", &as_reader) != 200 {
        assert!(clock.monotonic() - granted < RESPONSE_MAX, "the policy has no effect");
        support::pause();
    }
    let seen: BTreeSet<&str> = pages.into_iter().filter(|page| status(page, &as_reader) == 200).collect();
    for page in ["/tables/web", "/tables/web/data"] {
        assert!(seen.contains(page), "a reader of the table sees {page}");
    }
    for page in ["/", "/servers", "/tables/web", "/tables/web/data", "/events", "/config"] {
        assert_eq!(status(page, &with("x.y.z")), 401, "{page} with an invalid token");
    }
    for page in ["/", "/servers", "/servers/1", "/tables/web/tablets", "/locate?table=web&key=a", "/events", "/config"]
    {
        assert_eq!(status(page, &as_reader), 403, "{page} is for administrators");
    }
    // The table of the schema shows no tablets to a reader: their number is in METADATA.
    assert_eq!(send(&http, "GET", "/tables/web", &as_reader, "").value("table-tablets"), "-");

    // The login form stores the token where scripts and other sites cannot use it.
    let origin = format!("Origin: http://{http}\r\n");
    let form = format!("token={admin}");
    assert_eq!(send(&http, "POST", "/login", "", &form).status, 401, "without an origin");
    assert_eq!(send(&http, "POST", "/login", &origin, "token=x.y.z").status, 401);
    let logged_in = send(&http, "POST", "/login", &origin, &form);
    assert_eq!(logged_in.status, 303, "{}", logged_in.body);
    assert!(logged_in.head.contains("httponly; samesite=strict"), "{}", logged_in.head);
    assert_eq!(status("/", &format!("Cookie: ebla_token={admin}\r\n")), 200);
    assert_eq!(send(&http, "GET", "/live?page=%2F", "", "").status, 401);
    // A stream needs a valid token and the right to its page.
    assert_eq!(status("/live?page=%2Fheat", &with("x.y.z")), 401);
    assert_eq!(status("/live?page=%2Fservers", &as_reader), 403);
    assert_eq!(status("/live?page=%2Fconfig", &with(&admin)), 400, "it has no live parts");
    let _running = (master, server, etcd);
}
