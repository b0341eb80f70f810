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
          demo         Run a self-contained demonstration: temporary database, broker, writer and reader
          check        Check configuration, database and broker for problems (read-only)
          doctor       Everything that check finds, what the running process says, and whether standbys
                       could take over (read-only)
          init         Write a first configuration: a template, or made from a database or a Debezium
                       connector
          setup        Create publication, replication slot and Postrider's schema in the database
          run          Run the service until SIGTERM or SIGINT
          status       Show the state of every pipeline and intake of the running process
          pause        Stop reading and publishing for a pipeline, across restarts, until resume
          resume       Let a paused pipeline continue
          parked       Manage events that could not be published: list, show, retry, skip, replace
          repair       Recreate a lost replication slot and publish the missed events from the outbox table
          adopt        Continue from the stored position after mode, destination, table or layout was
                       changed
          bookmark     Manage saved positions to replay from: create, list, drop
          retain       Remove rows of the outbox that are old, published and needed by nobody: one pass of
                       retention
          partition    Turn a plain outbox into a partitioned one while applications write to it
          groups       Manage the consumer groups of event logs: list, create, drop, seek, lag, evict
          inbox        Inboxes of a service: run what stores in them, create, watch, dead messages, replay,
                       skip, purge, seek, drop
          replay       Publish events again: from a bookmark, an LSN or a time, by id or by aggregate
          verify       Compare outbox table or ledger with the topics: lost, swapped, repeated (read-only)
          sql          Install the SQL toolkit in a database: event logs, consumer groups, inboxes and table
                       outboxes in SQL
          config       Print the configuration in effect, or its JSON Schema
          completions  Print the completion script of a shell
          help         Print this message or the help of the given subcommand(s)

        Options:
          -c, --config <FILE>        Configuration file [default: $POSTRIDER_CONFIG, ./postrider.toml,
                                     /etc/postrider/postrider.toml]
          -p, --pipeline <NAME>      Only the pipeline with this name
              --log-format <FORMAT>  Format of the log, which goes to standard error [default: text]
                                     [possible values: text, json]
              --log <LEVEL|FILTER>   Log level: error, warn, info, debug, trace, or a filter such as
                                     info,postrider::pipeline=debug [default: info]
          -q, --quiet                Log only errors
              --color <WHEN>         When to use colours; auto: on a terminal, unless $NO_COLOR is set
                                     [default: auto] [possible values: auto, always, never]
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
    let expected = "postrider: no configuration file found: name one with --config, or create one of ./postrider.toml; \
                    postrider init writes a first one";
    assert_eq!(error.report(), expected);
}
