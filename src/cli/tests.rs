//! What can be typed, and what it means.

use super::*;
use expect_test::expect;

fn none(_: &str) -> Option<String> {
    None
}

fn exit(arguments: &[&str]) -> Exit {
    let arguments = std::iter::once("postrider").chain(arguments.iter().copied());
    main(arguments.map(OsString::from), &none)
}

fn help(path: &[&str]) -> String {
    let mut command = Args::command().term_width(100);
    command.build();
    let mut command = &mut command;
    for name in path {
        command = command.find_subcommand_mut(name).unwrap();
    }
    command.render_help().to_string()
}

#[test]
fn help_is_short() {
    expect![[r#"
        Carries events from a PostgreSQL outbox table to Kafka: in commit order, nothing lost

        Usage: postrider [OPTIONS] <COMMAND>

        Commands:
          demo         See it work: a throwaway database, an in-process broker, a writer and a reader, one
                       screen
          check        Check configuration, database and broker for problems (read-only)
          init         Write a first configuration: from nothing, from the tables of a database, or from a
                       Debezium connector's
          setup        Create what is missing in the database: publication, slot, Postrider's schema
          run          Stream until SIGTERM or SIGINT: the service
          status       One look at every pipeline of the running process
          parked       Events that could not be published: list, show, retry, skip, replace
          repair       Recreate a lost replication slot and publish the missed events from the outbox table
          adopt        Go on at the position with a changed mode, destination, table or layout
          bookmark     Saved positions to replay from: create, list, drop
          replay       Publish again: from a bookmark, an LSN, a time, by ids or of one aggregate
          config       Look at the configuration: the values in effect, or the schema for editors
          completions  Print the completions of a shell
          help         Print this message or the help of the given subcommand(s)

        Options:
          -c, --config <FILE>        The configuration [default: $POSTRIDER_CONFIG, ./postrider.toml,
                                     /etc/postrider/postrider.toml]
          -p, --pipeline <NAME>      Only the pipeline of this name
              --log-format <FORMAT>  How the log is written, on standard error [default: text] [possible
                                     values: text, json]
              --log <LEVEL|FILTER>   What is logged: error, warn, info, debug or trace, or a filter as
                                     info,postrider::pipeline=debug [default: info]
          -q, --quiet                Log only errors
              --color <WHEN>         Colours; auto has them on a terminal, unless $NO_COLOR is set [default:
                                     auto] [possible values: auto, always, never]
          -h, --help                 Print help (see more with '--help')
          -V, --version              Print version

        Exit codes: 0 done; 1 completed, but found problems; 2 wrong usage or configuration; 3 stopped for
        an operator; 70 a bug in Postrider.
    "#]].assert_eq(&help(&[]));
}

#[test]
fn the_command_line_is_sound() {
    Args::command().debug_assert();
}

#[test]
fn exit_codes_are_a_contract() {
    let directory = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = directory.path().join("postrider.toml");
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    assert_eq!(exit(&["--version"]), Exit::Done);
    assert_eq!(exit(&["--help"]), Exit::Done);
    assert_eq!(exit(&[]), Exit::Usage);
    assert_eq!(exit(&["nonsense"]), Exit::Usage);
    assert_eq!(exit(&["status", "--config", "/nowhere/postrider.toml"]), Exit::Usage);
    assert_eq!(exit(&["status", "--log", "a=b=c", "--config", "x"]), Exit::Usage);
    assert_eq!(exit(&["status", "-c", &file("nonsense = 1")]), Exit::Usage);
    let off = "pipelines.a = { source.url = \"postgresql://u@h/d\", outbox.table = \"t\", sink.kind = \"discard\" }\n\
               admin.listen = \"\"\n";
    assert_eq!(exit(&["status", "-c", &file(off)]), Exit::Usage);
    // Port 1 is nobody's.
    let gone = off.replace("\"\"", "\"127.0.0.1:1\"");
    assert_eq!(exit(&["status", "-c", &file(&gone)]), Exit::Problems);
    assert_eq!(exit(&["status", "-p", "b", "-c", &file(&gone)]), Exit::Usage);
    let codes = [Exit::Done, Exit::Problems, Exit::Usage, Exit::Halted, Exit::Bug].map(Exit::code);
    assert_eq!(codes, [0, 1, 2, 3, 70]);
}

#[test]
fn colours_follow_the_flag_then_no_color_then_the_terminal() {
    let set = |name: &str| (name == "NO_COLOR").then(|| "1".to_owned());
    let global = |color| Global { color, ..Global::default() };
    assert!(global(Color::Always).color(&set, false));
    assert!(!global(Color::Never).color(&none, true));
    assert!(global(Color::Auto).color(&none, true));
    assert!(!global(Color::Auto).color(&set, true));
    assert!(!global(Color::Auto).color(&none, false));
}

#[test]
fn a_missing_configuration_says_where_it_was_looked_for() {
    let error = CliError::from(config::ConfigError::Missing(vec!["./postrider.toml".to_owned()]));
    let expected = "postrider: found no configuration: name a file with --config, or write one of ./postrider.toml; \
                    postrider init writes a first one";
    assert_eq!(error.report(), expected);
}
