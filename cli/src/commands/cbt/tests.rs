//! The verbs of cbt: what each command line does, and that a mistyped verb is answered with the nearest one.

use clap::Parser as _;
use ebla_model::key::KeyRange;

use super::*;
use crate::commands::{Arguments, program};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(ToOwned::to_owned).collect()
}

fn parsed(line: &str) -> Cbt {
    match Arguments::try_parse_from(line.split_whitespace()).unwrap().command {
        Command::Cbt(command) => *command,
        other => panic!("{other:?}"),
    }
}

fn regex(pattern: &'static str) -> Bytes {
    Bytes::from_static(pattern.as_bytes())
}

#[test]
fn read_has_the_arguments_of_cbt() {
    let all =
        query(&words("start=a end=m regex=a.* columns=anchor:x,contents:,:y cells-per-column=2 count=7 reversed=true"));
    let all = all.unwrap();
    assert_eq!((all.limit, all.direction), (7, Direction::Descending));
    assert_eq!((all.keys.start, all.keys.end, all.keys.prefix), (Some(RowKey::new("a")), Some(RowKey::new("m")), None));
    let anchor =
        Filter::Chain(vec![Filter::FamilyNameRegex(regex("anchor")), Filter::ColumnQualifierRegex(regex("x"))]);
    let columns = Filter::Interleave(vec![
        anchor,
        Filter::FamilyNameRegex(regex("contents")),
        Filter::ColumnQualifierRegex(regex("y")),
    ]);
    let cells = Filter::Chain(vec![columns, Filter::CellsPerColumnLimit(2)]);
    let expected = Filter::Chain(vec![Filter::RowKeyRegex(regex("a.*")), cells]);
    assert_eq!(all.filter, Some(expected.clone()));
    expected.validate().unwrap();
    let plain = query(&words("prefix=com. app-profile=default")).unwrap();
    assert_eq!((plain.limit, plain.filter, plain.syntax), (0, None, Syntax::Arguments));
    assert!(plain.keys.prefix.is_some_and(|prefix| KeyRange::prefix(prefix.as_bytes()).contains(b"com.cnn")));
    let single = query(&words("columns=anchor:")).unwrap();
    assert_eq!(single.filter, Some(Filter::FamilyNameRegex(regex("anchor"))), "a chain of one is not valid");
}

#[test]
fn wrong_arguments_are_refused_with_the_right_ones() {
    let refused = |line: &str| query(&words(line)).map(|_query| ()).unwrap_err();
    for (line, says) in [
        ("pefix=a", "start=, end=, prefix=, regex="),
        ("com.cnn.www", "is not an argument of read"),
        ("count=0", "at least 1"),
        ("count=many", "at least 1"),
        ("cells-per-column=-1", "at least 1"),
        ("reversed=yes", "true or false"),
        ("start=a start=b", "twice"),
        ("regex=", "empty"),
        ("columns=:", "no family and no qualifier"),
        (r"start=\q", "backslash"),
    ] {
        let failure = refused(line);
        assert!(failure.code == 2 && failure.message.contains(says), "{line}: {failure:?}");
    }
}

#[test]
fn schema_verbs_are_commands_of_ebla() {
    match as_own(parsed("ebla createtable web families=anchor,contents:maxversions=3 splits=m,t")).unwrap() {
        Command::Table(table::Table::Create { of, families, splits, locality_groups, .. }) => {
            assert_eq!((of.table.as_str(), families.as_slice()), ("web", &words("anchor contents:maxversions=3")[..]));
            assert_eq!(splits, [RowKey::new("m"), RowKey::new("t")]);
            assert!(locality_groups.is_empty());
        }
        other => panic!("{other:?}"),
    }
    let updated = |line: &str| match as_own(parsed(line)).unwrap() {
        Command::Family(family::Family::Update(named)) => named.families.concat(),
        other => panic!("{other:?}"),
    };
    assert_eq!(updated("ebla setgcpolicy web contents maxversions=3"), "contents:maxversions=3");
    let both = updated("ebla setgcpolicy web contents maxage=30d and maxversions=3");
    assert_eq!(both, "contents:maxage=30d&&maxversions=3");
    assert_eq!(
        updated("ebla setgcpolicy web contents maxage=30d || maxversions=3"),
        "contents:maxage=30d||maxversions=3"
    );
    assert_eq!(updated("ebla setgcpolicy web contents never"), "contents");
    assert!(matches!(as_own(parsed("ebla ls")).unwrap(), Command::Table(table::Table::List { .. })));
    assert!(matches!(as_own(parsed("ebla ls web")).unwrap(), Command::Family(family::Family::List { .. })));
    match as_own(parsed("ebla deletecolumn web com.cnn.www anchor cnnsi.com")).unwrap() {
        Command::Row(row::Row::Delete(delete)) => {
            let column = row::Column { family: "anchor".to_owned(), qualifier: Bytes::from_static(b"cnnsi.com") };
            assert_eq!((delete.of.row, delete.column), (RowKey::new("com.cnn.www"), Some(column)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn deletions_accept_the_app_profile_of_cbt() {
    for line in ["ebla deleterow web a app-profile=default", "ebla deletecolumn web a f c app-profile=default"] {
        assert!(matches!(as_own(parsed(line)).unwrap(), Command::Row(row::Row::Delete(_))), "{line}");
    }
    let refused = as_own(parsed("ebla deleterow web a profile=default")).unwrap_err();
    assert!(refused.code == 2 && refused.message.contains("app-profile="), "{refused:?}");
}

#[test]
fn count_takes_a_prefix_in_both_syntaxes() {
    let prefix = |line: &str| {
        Arguments::try_parse_from(line.split_whitespace()).map(|parsed| match parsed.command {
            Command::Count(count) => (count.keys.prefix, count.prefix_argument),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(prefix("ebla count web prefix=com.").unwrap(), (None, Some(RowKey::new("com."))));
    assert_eq!(prefix("ebla count web --prefix com.").unwrap(), (Some(RowKey::new("com.")), None));
    assert!(prefix("ebla count web com.").unwrap_err().to_string().contains("prefix=KEY"));
    assert!(prefix("ebla count web prefix=a --prefix b").is_err());
}

#[test]
fn a_mistyped_verb_is_answered_with_the_nearest() {
    for (typed, nearest) in [
        ("scna", "scan"),
        ("statsu", "status"),
        ("tabel", "table"),
        ("creatable", "createtable"),
        ("deletrow", "deleterow"),
        ("lokup", "lookup"),
    ] {
        let message = program().try_get_matches_from(["ebla", typed]).unwrap_err().to_string();
        assert!(message.contains(&format!("'{nearest}'")), "{typed}: {message}");
    }
    let message = program().try_get_matches_from(["ebla", "table", "lst"]).unwrap_err().to_string();
    assert!(message.contains("'list'"), "{message}");
    let message = program().try_get_matches_from(["ebla", "scan", "web", "--perfix", "a"]).unwrap_err().to_string();
    assert!(message.contains("'--prefix'"), "{message}");
}
