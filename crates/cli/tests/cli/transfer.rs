//! Moving in and out: dumps, restores, exports and imports between real sets.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, doc};
use quorate_client::Client;
use quorate_testing::ReplicaSet;

use crate::live::Living;
use crate::support::{Run, quorate, quorate_with_input};

const PATIENCE: Duration = Duration::from_secs(120);

fn set(members: u8) -> ReplicaSet {
    let program = env!("CARGO_BIN_EXE_quorate");
    ReplicaSet::builder().members(members).program(program).start().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Runs this with a client of the set.
fn with_client<T>(uri: &str, work: impl AsyncFnOnce(&Client) -> T) -> T {
    runtime().block_on(async {
        let client = Client::with_uri(uri).unwrap();
        let done = work(&client).await;
        client.close().await;
        done
    })
}

fn fine(run: Run) -> Run {
    assert_eq!(run.code(), 0, "{}{}", run.stdout(), run.stderr());
    run
}

/// One document of every kind that people have, and enough others for several batches.
fn fill(uri: &str) {
    with_client(uri, async |client| {
        let shop = client.database("shop");
        let orders = shop.collection("orders");
        let mut documents = vec![
            doc! { "_id": "kinds", "long": 5_000_000_000_i64, "double": 1.5, "whole": 1.0,
            "date": DateTime::from_millis(1_700_000_000_123), "nothing": Bson::Null,
            "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0, 1, 255] },
            "text": "grün 🦀 \"x\", y\n", "list": [1, [2, { "a": 3 }]], "decimal": "9.99".parse::<bson::Decimal128>().unwrap(),
            "id": bson::oid::ObjectId::from_bytes([7; 12]) },
            doc! { "_id": { "compound": 1, "b": "x" }, "n": -1 },
            doc! { "_id": Bson::Null, "n": -2 },
            doc! { "_id": 3.5, "n": -3 },
        ];
        documents.extend((0..2500).map(|n| doc! { "_id": n, "n": n, "pad": "x".repeat(50) }));
        orders.insert_many(documents).await.unwrap();
        orders.create_index(doc! { "n": -1 }).unique(true).name("by n").await.unwrap();
        shop.collection("a/b c%").insert_one(doc! { "_id": 1 }).await.unwrap();
        shop.create_collection("log").capped(65_536).await.unwrap();
        let lines = (0..20).map(|n| doc! { "_id": 100 - n });
        shop.collection("log").insert_many(lines).await.unwrap();
        shop.create_collection("empty").await.unwrap();
        shop.create_collection("big")
            .view("orders", [doc! { "$match": { "n": { "$gt": 2490 } } }])
            .await
            .unwrap();
        client.collection("other", "things").insert_one(doc! { "_id": 1 }).await.unwrap();
    });
}

/// Everything that a deployment holds, as a text to compare. Identifiers of collections differ.
fn everything(uri: &str) -> String {
    with_client(uri, async |client| {
        let mut told = String::new();
        for database in client.list_databases().names().await.unwrap() {
            if ["admin", "config", "local"].contains(&database.as_str()) {
                continue;
            }
            let listed = client.database(&database).list_collections().await.unwrap();
            let mut listed: Vec<Document> = listed
                .collect()
                .await
                .unwrap()
                .into_iter()
                .map(|listed| Document::try_from(listed).unwrap())
                .collect();
            listed.sort_by_key(|listed| listed.get_str("name").unwrap().to_owned());
            for one in listed {
                let name = one.get_str("name").unwrap();
                let options = one.get_document("options").unwrap();
                let collection = client.collection(&database, name);
                told += &format!("{database}.{name} {options}\n");
                if one.get_str("type").unwrap() == "collection" {
                    let mut indexes: Vec<String> = collection
                        .list_indexes()
                        .await
                        .unwrap()
                        .collect()
                        .await
                        .unwrap()
                        .into_iter()
                        .map(|index| Document::try_from(index).unwrap().to_string())
                        .collect();
                    indexes.sort();
                    told += &format!("{indexes:?}\n");
                }
                // Capped collections keep their order, others have none.
                let mut documents =
                    collection.find(doc! {}).await.unwrap().collect().await.unwrap();
                if !options.contains_key("capped") {
                    documents.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
                }
                for document in documents {
                    told += &format!("{document:?}\n");
                }
            }
        }
        told
    })
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What is dumped is restored to the byte: documents, options, indexes, views, odd names.
#[test]
fn a_dump_restores_to_the_same_in_each_form() {
    let (from, to) = (set(1), set(1));
    fill(from.uri());
    let wanted = everything(from.uri());
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let forms: [(&[&str], &str, &[&str]); 4] = [
        (&[], "plain", &[]),
        (&["--gzip"], "packed", &[]),
        (&["--archive"], "archive", &["--archive"]),
        (&["--gzip", "--archive"], "archive.gz", &["--gzip", "--archive"]),
    ];
    for (dump, name, restore) in forms {
        let place = path(name);
        let place = text(&place);
        fine(quorate(&[&["dump", from.uri()], dump, &[place]].concat()));
        let run = fine(quorate(
            &[&["restore", "--drop", "--json"], restore, &[place, to.uri()]].concat(),
        ));
        assert_eq!(run.events()[0]["collections"], 6, "{name}");
        assert!(everything(to.uri()) == wanted, "{name}: {}", everything(to.uri()));
    }
    let plain = path("plain");
    for file in [
        "shop/orders.bson", "shop/orders.metadata.json", "shop/a%2Fb+c%25.bson", "shop/empty.bson",
        "shop/big.metadata.json",
    ] {
        assert!(plain.join(file).is_file(), "{file}");
    }
    assert!(!plain.join("shop/big.bson").exists() && !plain.join("admin").exists());
    assert!(path("packed").join("shop/orders.bson.gz").is_file());
    // Through a pipe.
    let piped = Command::new("sh")
        .arg("-c")
        .arg("\"$0\" dump --only shop.orders --archive - \"$1\" | \"$0\" restore --json --archive - \"$2\"")
        .args([env!("CARGO_BIN_EXE_quorate"), from.uri(), to.uri()])
        .output()
        .unwrap();
    let told = String::from_utf8(piped.stdout).unwrap();
    let told: serde_json::Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!((&told["present"], &told["conflicts"]), (&2504.into(), &0.into()), "{told}");
}

/// Documents that are there are never overwritten, and never counted twice.
#[test]
fn a_restore_can_be_run_again_and_overwrites_nothing() {
    let set = set(1);
    fill(set.uri());
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("dump");
    let place = text(&place);
    fine(quorate(&["dump", "--only", "shop", set.uri(), place]));
    let again = quorate(&["dump", set.uri(), place]);
    assert_eq!(again.code(), 1);
    assert!(again.stderr().contains("is there already"), "{}", again.stderr());
    let run = fine(quorate(&["restore", "--json", place, set.uri()]));
    let told = run.events().pop().unwrap();
    assert_eq!(told["documents"], 0, "{told}");
    assert_eq!(told["present"], 2504 + 1 + 20, "{told}");
    with_client(set.uri(), async |client| {
        let orders = client.collection("shop", "orders");
        orders.update_one(doc! { "_id": 7 }, doc! { "$set": { "pad": "changed" } }).await.unwrap();
        orders.delete_one(doc! { "_id": 8 }).await.unwrap();
    });
    let run = quorate(&["restore", "--only", "shop.orders", place, set.uri()]);
    assert_eq!(run.code(), 1, "{}", run.stderr());
    let told = run.stderr();
    assert!(told.contains("1 document of shop.orders differ"), "{told}");
    assert!(told.contains("_id 7") && told.contains("--drop"), "{told}");
    assert!(told.contains("1 document,"), "the deleted one is back: {told}");
    with_client(set.uri(), async |client| {
        let found = client.collection("shop", "orders").find_one(doc! { "_id": 7 }).await.unwrap();
        assert_eq!(found.unwrap().get_str("pad").unwrap(), "changed");
    });
    fine(quorate(&["restore", "--drop", place, set.uri()]));
    fine(quorate(&["restore", place, set.uri()]));
}

/// Money moves between collections in transactions all the time; a dump with the oplog has one moment.
#[test]
fn a_dump_with_the_oplog_is_of_one_moment() {
    const ACCOUNTS: i32 = 300;
    let (from, to) = (set(1), set(1));
    with_client(from.uri(), async |client| {
        for name in ["left", "right"] {
            let accounts = (0..ACCOUNTS).map(|n| doc! { "_id": n, "balance": 100 });
            client.collection("bank", name).insert_many(accounts).await.unwrap();
        }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let (uri, stopped) = (from.uri().to_owned(), Arc::clone(&stop));
    let writer = std::thread::spawn(move || {
        with_client(&uri, async |client| {
            let mut moved = 0;
            while !stopped.load(Ordering::Relaxed) {
                let (one, other) = (moved * 7 % ACCOUNTS, moved * 11 % ACCOUNTS);
                let mut session = client.start_session();
                session.start_transaction().unwrap();
                let left = client.collection("bank", "left");
                let right = client.collection("bank", "right");
                let take = doc! { "$inc": { "balance": -1 } };
                let give = doc! { "$inc": { "balance": 1 } };
                left.update_one(doc! { "_id": one }, take).session(&mut session).await.unwrap();
                right.update_one(doc! { "_id": other }, give).session(&mut session).await.unwrap();
                let extra = doc! { "_id": ACCOUNTS + moved, "balance": 0 };
                right.insert_one(extra).session(&mut session).await.unwrap();
                session.commit_transaction().await.unwrap();
                if moved % 3 == 0 {
                    let gone = doc! { "_id": ACCOUNTS + moved };
                    right.delete_one(gone).await.unwrap();
                }
                moved += 1;
            }
            moved
        })
    });
    let directory = tempfile::tempdir().unwrap();
    for form in ["one", "two", "three"] {
        let place = directory.path().join(form);
        let packed: &[&str] = if form == "three" { &["--gzip", "--archive"] } else { &[] };
        let dump =
            [&["dump", "--oplog", "--json", from.uri()][..], packed, &[text(&place)]].concat();
        let dump: Vec<&str> = match form {
            "three" => dump.into_iter().filter(|word| *word != "--json").collect(),
            _ => dump,
        };
        fine(quorate(&dump));
        fine(quorate(&[&["restore", "--drop"], packed, &[text(&place), to.uri()]].concat()));
        let total = with_client(to.uri(), async |client| {
            let mut total = 0;
            for name in ["left", "right"] {
                let found = client.collection("bank", name).find(doc! {}).await.unwrap();
                for account in found.collect().await.unwrap() {
                    total += account.get_i32("balance").unwrap();
                }
            }
            total
        });
        assert_eq!(total, 2 * ACCOUNTS * 100, "money was made or lost in {form}");
        // The replay may be run again.
        let again = quorate(&[&["restore"], packed, &[text(&place), to.uri()]].concat());
        assert!([0, 1].contains(&again.code()), "{}", again.stderr());
    }
    stop.store(true, Ordering::Relaxed);
    assert!(writer.join().unwrap() > 0);
}

fn count(uri: &str) -> u64 {
    with_client(uri, async |client| {
        client.collection("shop", "many").count_documents(doc! {}).await.unwrap()
    })
}

fn many(uri: &str, documents: i32) {
    with_client(uri, async |client| {
        let many = (0..documents).map(|n| doc! { "_id": n, "pad": "x".repeat(200) });
        client.collection("shop", "many").insert_many(many).await.unwrap();
    });
}

fn start(arguments: &[&str]) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        std::thread::yield_now();
        assert!(Instant::now() < deadline, "never saw that {what}");
    }
}

/// Killed at any moment, a dump is not there or whole, and a restore is finished by another.
#[test]
fn what_is_killed_is_run_again_and_nothing_is_lost() {
    const MANY: i32 = 8_000;
    let (from, to) = (set(1), set(1));
    many(from.uri(), MANY);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("dump");
    let partial = directory.path().join("dump.partial");
    let mut dump = start(&["dump", from.uri(), text(&place)]);
    until("the dump has begun", || partial.exists() || place.exists());
    dump.kill().unwrap();
    dump.wait().unwrap();
    if !place.exists() {
        fine(quorate(&["dump", from.uri(), text(&place)]));
    }
    assert!(!partial.exists());
    let mut restore = start(&["restore", text(&place), to.uri()]);
    until("the restore has begun", || count(to.uri()) > 0);
    restore.kill().unwrap();
    restore.wait().unwrap();
    fine(quorate(&["restore", text(&place), to.uri()]));
    assert_eq!(count(to.uri()), MANY as u64);
}

/// Has the server hold back every batch but the first of a cursor, or no longer.
fn hold_back_batches(uri: &str, on: bool) {
    let data =
        doc! { "failCommands": ["getMore"], "blockConnection": true, "blockTimeMS": 120_000 };
    let mode = if on { "alwaysOn" } else { "off" };
    with_client(uri, async |client| {
        let point = bson::rawdoc! { "configureFailPoint": "failCommand", "mode": mode, "data": bson::RawDocumentBuf::try_from(&data).unwrap() };
        client.run_command("admin", &point).await.unwrap();
    });
}

/// The second run reads only what the first had not finished, and the result is one moment.
#[test]
fn a_dump_that_was_killed_keeps_what_was_whole() {
    let (from, to) = (set(1), set(1));
    with_client(from.uri(), async |client| {
        let shop = client.database("shop");
        for name in ["again", "first", "gone"] {
            let few = (0..50).map(|n| doc! { "_id": n, "n": "before" });
            shop.collection(name).insert_many(few).await.unwrap();
        }
    });
    many(from.uri(), 1_000);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("dump");
    let words = ["dump", "--oplog", "--json", "--jobs", "1", from.uri(), text(&place)];
    hold_back_batches(from.uri(), true);
    let mut dump = start(&words);
    let progress = directory.path().join("dump.partial/progress.jsonl");
    until("three collections are whole", || {
        std::fs::read_to_string(&progress).is_ok_and(|text| text.contains("\"gone\""))
    });
    let beside = quorate(&words);
    assert_eq!(beside.code(), 1);
    assert!(beside.stderr().contains("another dump"), "{}", beside.stderr());
    dump.kill().unwrap();
    dump.wait().unwrap();
    hold_back_batches(from.uri(), false);
    with_client(from.uri(), async |client| {
        let shop = client.database("shop");
        let change = doc! { "$set": { "n": "after" } };
        shop.collection("first").update_one(doc! { "_id": 7 }, change).await.unwrap();
        client.run_command("shop", &bson::rawdoc! { "drop": "gone" }).await.unwrap();
        // Another collection of the same name.
        client.run_command("shop", &bson::rawdoc! { "drop": "again" }).await.unwrap();
        shop.collection("again").insert_one(doc! { "_id": "new" }).await.unwrap();
    });
    let told = fine(quorate(&words));
    let told: serde_json::Value = serde_json::from_str(told.stdout().trim()).unwrap();
    assert_eq!(told["kept"], 1, "{told}");
    let kept = std::fs::read(place.join("shop/first.bson")).unwrap();
    assert!(!kept.windows(5).any(|window| window == b"after"), "it was read again");
    assert!(!place.join("shop/gone.bson").exists() && !place.join("progress.jsonl").exists());
    fine(quorate(&["restore", text(&place), to.uri()]));
    let shop = |uri: &str| everything(uri).split_once("shop.again").unwrap().1.to_owned();
    assert!(shop(to.uri()) == shop(from.uri()), "the set is not as it was when the dump ended");
}

/// The primary dies while a dump is read and while a restore is written.
#[test]
fn a_failover_costs_neither_a_dump_nor_a_restore() {
    const MANY: i32 = 8_000;
    let (from, to) = (set(3), set(3));
    many(from.uri(), MANY);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("dump");
    let file = directory.path().join("dump.partial/shop/many.bson");
    let dump = start(&["dump", from.uri(), text(&place)]);
    until("documents are written", || {
        place.exists() || file.metadata().is_ok_and(|metadata| metadata.len() > 100_000)
    });
    from.primary().unwrap().kill().unwrap();
    let ended = dump.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let bytes = std::fs::read(place.join("shop/many.bson")).unwrap();
    let mut documents = 0;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let size = usize::try_from(i32::from_le_bytes(rest[..4].try_into().unwrap())).unwrap();
        let document = RawDocumentBuf::from_bytes(rest[..size].to_vec()).unwrap();
        assert_eq!(document.get_i32("_id").unwrap(), documents);
        documents += 1;
        rest = &rest[size..];
    }
    assert_eq!(documents, MANY);
    let restore = start(&["restore", text(&place), to.uri()]);
    until("the restore has begun", || count(to.uri()) > 0);
    to.primary().unwrap().kill().unwrap();
    let ended = restore.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(count(to.uri()), MANY as u64);
}

/// What is wrong is told with a next step, before anything is written.
#[test]
fn what_cannot_be_dumped_or_restored_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let set = set(1);
    let nothing =
        quorate(&["dump", "--only", "nowhere", set.uri(), text(&directory.path().join("a"))]);
    assert_eq!(nothing.code(), 1);
    assert!(nothing.stderr().contains("there is nothing named nowhere"), "{}", nothing.stderr());
    for (arguments, code, words) in [
        (vec!["restore", text(directory.path()), set.uri()], 1, "holds no dump"),
        (vec!["restore", "/nowhere", set.uri()], 1, "give the directory of a dump"),
        (vec!["restore", set.uri()], 2, "give the directory of the dump"),
        (vec!["restore", "--archive", "/dev/null", set.uri()], 1, "does not begin as an archive"),
        (vec!["dump", set.uri()], 2, "<DIR|--archive <FILE>>"),
    ] {
        let run = quorate(&arguments);
        assert_eq!(run.code(), code, "{arguments:?} {}", run.stderr());
        assert!(run.stderr().contains(words), "{arguments:?} {}", run.stderr());
    }
    let folder: PathBuf = directory.path().join("cut/shop");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("orders.bson"), [20, 0, 0, 0, 1]).unwrap();
    let cut = quorate(&["restore", text(&directory.path().join("cut")), set.uri()]);
    assert_eq!(cut.code(), 1);
    assert!(cut.stderr().contains("damaged at byte 0"), "{}", cut.stderr());
}

/// Every kind of value goes out and comes in the same, as JSON with types.
#[test]
fn json_lines_come_back_as_they_were() {
    let set = set(1);
    fill(set.uri());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("orders.jsonl");
    let file = text(&file);
    fine(quorate(&["export", "--canonical", set.uri(), "shop.orders", file]));
    fine(quorate(&["import", set.uri(), "shop.copies", file]));
    let all = |name: &'static str| {
        with_client(set.uri(), async |client| {
            let found = client.collection("shop", name).find(doc! {}).await.unwrap();
            let mut found = found.collect().await.unwrap();
            found.sort_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
            found
        })
    };
    assert!(all("orders") == all("copies"));
    let again = fine(quorate(&["import", "--json", set.uri(), "shop.copies", file]));
    let told = again.events().pop().unwrap();
    assert_eq!((&told["documents"], &told["present"]), (&0.into(), &2504.into()), "{told}");
    // A part of it, in an order, on stdout.
    let some = fine(quorate(&[
        "export",
        set.uri(),
        "shop.orders",
        "--query",
        "{n: {$gt: 10}}",
        "--sort",
        "{n: -1}",
        "--limit",
        "2",
        "--fields",
        "n",
    ]));
    assert_eq!(some.stdout(), "{\"n\":2499}\n{\"n\":2498}\n");
    let view = fine(quorate(&[
        "export",
        set.uri(),
        "shop.big",
        "--sort",
        "{n: 1}",
        "--limit",
        "1",
        "--fields",
        "n",
    ]));
    assert_eq!(view.stdout(), "{\"n\":2491}\n");
    let array = "[{\"_id\": 1}, {\"_id\": 2}]\n{\"_id\": {\"$numberLong\": \"3\"}}";
    fine(quorate_with_input(&["import", set.uri(), "shop.array"], array));
    assert_eq!(all("array").len(), 3);
    let broken = quorate_with_input(&["import", set.uri(), "shop.array"], "{\"_id\": 4}\n{oops");
    assert_eq!(broken.code(), 1);
    assert!(broken.stderr().contains("line 2"), "{}", broken.stderr());
    assert_eq!(all("array").len(), 4, "what comes before the mistake is imported");
    let odd = "{\"_id\": 5}\n\n{\"_id\": 6} {\"_id\": 7}\n{\"_id\":\n8}\n";
    fine(quorate_with_input(&["import", set.uri(), "shop.array"], odd));
    assert_eq!(all("array").len(), 8);
    let later = quorate_with_input(&["import", set.uri(), "shop.array"], "{}\n{\n\"_id\": 9,\n,}");
    assert!(later.stderr().contains("line 4, column 1"), "{}", later.stderr());
}

#[test]
fn csv_has_columns_and_types_that_can_be_told() {
    let set = set(1);
    let rows =
        "_id,name,at.city,zip,n\r\n1,\"Ann, \"\"A\"\"\",Bonn,01234,1.5\r\n2,Bob,,\"55\",7\r\n";
    fine(quorate_with_input(&["import", "--format", "csv", set.uri(), "shop.people"], rows));
    with_client(set.uri(), async |client| {
        let people = client.collection("shop", "people");
        let found = people.find(doc! {}).await.unwrap().collect().await.unwrap();
        let found: Vec<Document> =
            found.into_iter().map(|person| Document::try_from(person).unwrap()).collect();
        let ann = doc! { "_id": 1, "name": "Ann, \"A\"", "at": { "city": "Bonn" }, "zip": "01234", "n": 1.5 };
        assert_eq!(found, [ann, doc! { "_id": 2, "name": "Bob", "zip": "55", "n": 7 }]);
    });
    let export = ["export", set.uri(), "shop.people", "--format", "csv"];
    let out = fine(quorate(&[&export[..], &["--fields", "_id,name,at.city,zip,n"]].concat()));
    assert_eq!(out.stdout().replace('\n', "\r\n"), rows);
    let columns = quorate(&export);
    assert_eq!(columns.code(), 2);
    assert!(columns.stderr().contains("--fields"), "{}", columns.stderr());
    let wide = quorate_with_input(&["import", "--format", "csv", set.uri(), "shop.x"], "a,b\n1\n");
    assert_eq!(wide.code(), 1);
    assert!(wide.stderr().contains("line 2: 1 values for 2 columns"), "{}", wide.stderr());
}

/// What turns a line around or steers a terminal is written as JSON's own escapes: the same value.
#[test]
fn an_export_shows_hidden_characters_and_keeps_the_values() {
    const HOSTILE: &str = "a\u{202e}b\u{9b}31m\u{7f}\\\u{2066}c";
    let set = set(1);
    let documents = || {
        with_client(set.uri(), async |client| {
            let names = client.collection("shop", "copies").find(doc! {}).await.unwrap();
            names.collect().await.unwrap()
        })
    };
    let document = doc! { "_id": 1, HOSTILE: HOSTILE, "in": [{ "x": HOSTILE }] };
    with_client(set.uri(), async |client| {
        client.collection("shop", "names").insert_one(document.clone()).await.unwrap();
    });
    let hidden = |text: &str| text.chars().any(quorate_protocol::is_hidden);
    let csv = ["--format", "csv", "--fields", "_id,in"];
    for more in [&[][..], &["--canonical"], &csv] {
        let out = fine(quorate(&[&["export", set.uri(), "shop.names"], more].concat())).stdout();
        assert!(!hidden(&out) && out.contains("a\\u202eb\\u009b31m\\u007f\\"), "{more:?} {out:?}");
    }
    let out = fine(quorate(&["export", set.uri(), "shop.names"])).stdout();
    fine(quorate_with_input(&["import", set.uri(), "shop.copies"], &out));
    let found = documents().pop().unwrap();
    assert_eq!(Document::try_from(found).unwrap(), document);
}

/// Lines from a pipe: commands, words of the shell, and errors that do not end it.
#[test]
fn a_shell_runs_lines_from_a_pipe() {
    let set = set(1);
    let lines = "use shop\n{insert: 'orders',\n documents: [{_id: 1}, {_id: 2}]}\n{find: 'orders'}\n\
                 show collections\ndb.orders.find()\n{nonsense: 1}\n{count: 'orders'}\n";
    let run = quorate_with_input(&["shell", set.uri()], lines);
    assert_eq!(run.code(), 1, "two lines failed");
    let (out, talk) = (run.stdout(), run.stderr());
    assert!(out.contains("{\"_id\":1}\n{\"_id\":2}\norders\n"), "{out}");
    assert!(out.contains("\"n\": 2,"), "{out}");
    assert!(talk.contains("not JavaScript") && talk.contains("mongosh"), "{talk}");
    assert!(talk.contains("no such command"), "{talk}");
    let run =
        fine(quorate_with_input(&["shell", "--json", set.uri()], "use shop\n{find: 'orders'}"));
    assert_eq!(run.events()[0]["document"], serde_json::json!({"_id": 1}));
    assert_eq!(quorate_with_input(&["shell", set.uri()], "{find: 'x',").code(), 2);
}

/// The server answers ok to a command of which it refused a write.
#[test]
fn a_refused_write_is_no_success() {
    let set = set(1);
    let twice = "{insert: 'orders', documents: [{_id: 1}, {_id: 1}]}";
    let run = quorate(&["run", "--database", "shop", set.uri(), twice]);
    assert_eq!(run.code(), 1, "{}", run.stdout());
    assert!(run.stdout().contains("\"n\": 1,"), "the reply is printed: {}", run.stdout());
    let told = run.stderr();
    assert!(told.contains("refused 1 write;") && told.contains("E11000"), "{told}");
    let run = quorate(&["run", "--json", "--database", "shop", set.uri(), twice]);
    let events: Vec<_> = run.events().iter().map(|event| event["event"].clone()).collect();
    assert_eq!((run.code(), events), (1, vec!["reply".into(), "error".into()]));
    let run = quorate_with_input(&["shell", "--json", "--database", "shop", set.uri()], twice);
    assert_eq!(run.code(), 1, "{}", run.stdout());
    assert!(run.stdout().contains("E11000"), "{}", run.stdout());
}

/// `-` is stdin or stdout, as for `dump` and `restore`, and no file of that name.
#[test]
fn a_dash_is_no_file() {
    let set = set(1);
    fine(quorate_with_input(&["import", set.uri(), "shop.things", "-"], "{\"_id\":1}\n"));
    let out = fine(quorate(&["export", set.uri(), "shop.things", "-"]));
    assert_eq!(out.stdout(), "{\"_id\":1}\n");
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("archive");
    let dump = ["dump", set.uri(), "--json", "--only", "shop", "--archive"];
    let dumped = fine(quorate(&[&dump[..], &[archive.to_str().unwrap()]].concat()));
    assert_eq!(dumped.events()[0]["documents"], 1, "{}", dumped.stdout());
    let mixed = quorate(&[&dump[..], &["-"]].concat());
    assert_eq!(mixed.code(), 2, "{}", mixed.stdout());
}

/// Nothing is dropped for a file that cannot be read, and nothing written beside what is no file.
#[test]
fn a_directory_in_place_of_a_file_changes_nothing() {
    let set = set(1);
    fine(quorate_with_input(&["import", set.uri(), "shop.things"], "{\"_id\":1}\n"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let run = quorate(&["import", "--drop", set.uri(), "shop.things", path]);
    assert_eq!(run.code(), 1, "{}", run.stdout());
    let inner = directory.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let run = quorate(&["export", set.uri(), "shop.things", inner.to_str().unwrap()]);
    assert_eq!(run.code(), 1, "{}", run.stdout());
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 1, "an export that cannot be put in place leaves nothing behind");
    let out = fine(quorate(&["export", set.uri(), "shop.things"]));
    assert_eq!(out.stdout(), "{\"_id\":1}\n");
}

/// What names nothing of the dump restores nothing, and is told as `dump --only` tells it.
#[test]
fn a_restore_of_what_the_dump_does_not_have_is_no_success() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    fine(quorate_with_input(&["import", &uri, "shop.orders"], "{\"_id\": 1}"));
    let directory = tempfile::tempdir().unwrap();
    let (dump, archive) = (directory.path().join("dump"), directory.path().join("archive"));
    let (dump, archive) = (dump.to_str().unwrap(), archive.to_str().unwrap());
    fine(quorate(&["dump", &uri, dump]));
    fine(quorate(&["dump", &uri, "--archive", archive]));
    let told = |arguments: &[&str]| {
        let run = quorate(arguments);
        assert_eq!(run.code(), 1, "{}", run.stderr());
        run.stderr()
    };
    let text = told(&["restore", "--only", "shpo", dump, &uri]);
    assert!(text.contains("nothing named shpo"), "{text}");
    let text = told(&["restore", "--only", "shop.orderz", "--archive", archive, &uri]);
    assert!(text.contains("nothing named shop.orderz"), "{text}");
    let text = told(&["restore", "--oplog-limit", "1763251200", dump, &uri]);
    assert!(text.contains("no oplog.bson") && text.contains("dump with --oplog"), "{text}");
    fine(quorate(&["restore", "--only", "shop", dump, &uri]));
    assert_eq!(served.terminate(), Some(0));
}

/// Editors of some systems begin a file with a mark of byte order.
#[test]
fn a_mark_of_byte_order_is_no_part_of_the_first_document() {
    let mut served = Living::start(&["serve", "--memory", "--port", "0", "--json"]);
    let uri = served.event()["uri"].as_str().unwrap().to_owned();
    let import = ["import", &uri, "shop.orders"];
    let text = "\u{feff}{\"_id\": 1, \"n\": 1}\r\n{\"_id\": 2}\r\n";
    let imported = fine(quorate_with_input(&import, text));
    assert!(imported.stderr().contains("imported 2 documents"), "{}", imported.stderr());
    let one = quorate_with_input(&import, "{\"_id\": 1, \"n\": 2}");
    assert_eq!(one.code(), 1);
    assert!(one.stderr().contains("1 document differs from what is there"), "{}", one.stderr());
    let two = quorate_with_input(&import, "{\"_id\": 1, \"n\": 2}{\"_id\": 2, \"n\": 2}");
    assert!(two.stderr().contains("2 documents differ from what is there"), "{}", two.stderr());
    assert_eq!(served.terminate(), Some(0));
}
