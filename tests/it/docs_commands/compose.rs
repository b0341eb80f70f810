//! What can't be started here, Docker and systemd, held against what can be read: the files parse, what they name
//! exists, and the commands in them are commands.

use super::blocks::root;
use crate::private::PrivatePostgres;
use crate::relay::postrider_ok;
use crate::server::{Client, Database, Version};
use clap::Parser;
use postrider::cli::{Args, Exit};
use std::fs;
use std::process::Command;
use yaml_rust2::{Yaml, YamlLoader};

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn compose() -> Yaml {
    YamlLoader::load_from_str(&read("docker-compose.yml")).expect("YAML").remove(0)
}

fn services(compose: &Yaml) -> Vec<(&str, &Yaml)> {
    let services = compose["services"].as_hash().expect("services");
    services.iter().map(|(name, service)| (name.as_str().expect("a name"), service)).collect()
}

fn strings(list: &Yaml) -> Vec<&str> {
    list.as_vec().map(|list| list.iter().filter_map(Yaml::as_str).collect()).unwrap_or_default()
}

#[test]
fn compose_names_images_files_and_services_that_exist() {
    let compose = compose();
    let services = services(&compose);
    let names: Vec<&str> = services.iter().map(|(name, _)| *name).collect();
    for name in ["postgres", "kafka", "topics", "setup", "postrider", "writer", "consumer"] {
        assert!(names.contains(&name), "{name}");
    }
    for (name, service) in services {
        let image = service["image"].as_str().unwrap_or_else(|| panic!("{name} names no image"));
        assert!(image == "postrider" || image.contains(':'), "{name}: {image} has no version");
        if service["build"].as_str().is_some() {
            assert!(root().join("Dockerfile").is_file());
        }
        for volume in strings(&service["volumes"]) {
            if let Some(path) = volume.strip_prefix("./") {
                let file = path.split(':').next().expect("a path");
                assert!(root().join(file).is_file(), "{name}: {volume}");
            }
        }
        for (needed, how) in service["depends_on"].as_hash().into_iter().flatten() {
            let needed = needed.as_str().expect("a name");
            assert!(names.contains(&needed), "{name} needs {needed}");
            let condition = how["condition"].as_str().expect("a condition");
            let healthy = condition != "service_healthy"
                || !compose["services"][needed]["healthcheck"].is_badvalue();
            assert!(healthy, "{name} waits for the health of {needed}, which has no check");
            assert!(["service_healthy", "service_completed_successfully"].contains(&condition));
        }
    }
}

#[test]
fn compose_runs_commands_that_postrider_has_with_a_configuration_that_loads() {
    let compose = compose();
    for (name, service) in services(&compose) {
        if service["image"].as_str() == Some("postrider") {
            let typed = strings(&service["command"]);
            let parsed = Args::try_parse_from(["postrider"].into_iter().chain(typed));
            parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    for name in ["compose", "compose-nats", "compose-redis", "compose-rabbitmq"] {
        let file = root().join(format!("config/{name}.toml"));
        let set = |name: &str| (name == "RABBITMQ_PASSWORD").then(|| "x".to_owned());
        let config = postrider::config::load(&file, &set).expect("a configuration");
        assert_eq!(config.warnings.len(), 0, "{name}: {:?}", config.warnings);
    }
}

/// Each profile has a server, and a relay with the configuration that is named as the profile.
#[test]
fn compose_has_a_profile_for_each_broker() {
    let compose = compose();
    for profile in ["nats", "redis", "rabbitmq"] {
        for name in [profile.to_owned(), format!("setup-{profile}"), format!("postrider-{profile}")]
        {
            let service = &compose["services"][name.as_str()];
            assert_eq!(strings(&service["profiles"]), [profile], "{name}");
            if name != profile {
                let file =
                    format!("./config/compose-{profile}.toml:/etc/postrider/postrider.toml:ro");
                assert_eq!(strings(&service["volumes"]), [file.as_str()], "{name}");
            }
        }
        let text = read(&format!("config/compose-{profile}.toml"));
        assert!(text.contains(&format!("kind = \"{profile}\"")), "{text}");
    }
}

/// The relay's role is no superuser: made by one service, given its rights by the next.
#[tokio::test]
async fn compose_runs_the_relay_by_a_role_of_its_own() {
    let compose = compose();
    let command = strings(&compose["services"]["role"]["command"]);
    // Compose takes $$ for one $.
    let sql = command.last().expect("statements").replace("$$", "$");
    let server = PrivatePostgres::start(Version::Pg17, "").await;
    let client = server.connect().await;
    client.batch("create database shop").await;
    client.batch(&sql).await;
    client.batch(&sql).await;
    let here = |text: &str| text.replace("@postgres:5432", &format!("@127.0.0.1:{}", server.port));
    let config = here(&read("config/compose.toml"));
    let typed: Vec<String> =
        strings(&compose["services"]["setup"]["command"]).into_iter().skip(2).map(here).collect();
    let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
    postrider_ok(&config, &typed);
    let rights = "select rolsuper::text || ' ' || rolreplication::text from pg_roles where rolname = 'postrider'";
    assert_eq!(client.text(rights).await.as_deref(), Some("false true"));
    assert!(config.contains("//postrider@"), "{config}");
}

/// Commands in a shell of the host find the password where the unit's process has it by a variable.
#[test]
fn password_file_of_the_unit_is_found_with_and_without_its_variable() {
    let unit = read("config/postrider.service");
    let (_, rest) = unit.split_once("password_file = \"").expect("the line of the configuration");
    let (path, _) = rest.split_once('"').expect("its end");
    let load = unit.lines().find_map(|line| line.strip_prefix("LoadCredential=")).expect("a file");
    let (name, file) = load.split_once(':').expect("name and file");
    assert!(path.ends_with(&format!("/{name}")) && file.ends_with(&format!("/{name}")), "{load}");
    let dir = tempfile::TempDir::new().expect("a directory");
    for place in ["credentials", "etc"] {
        fs::create_dir(dir.path().join(place)).expect("a directory");
        fs::write(dir.path().join(place).join(name), "hush").expect("a file");
    }
    let etc = dir.path().join("etc").display().to_string();
    let text = format!(
        "[pipelines.orders.source]\nurl = \"postgresql://u@h/d\"\npassword_file = \"{}\"\n\
         [pipelines.orders.outbox]\ntable = \"t\"\n[pipelines.orders.sink]\nkind = \"stdout\"\n",
        path.replace("/etc/postrider", &etc)
    );
    let credentials = dir.path().join("credentials").display().to_string();
    for set in [None, Some(credentials)] {
        let parsed = postrider::config::parse("f", dir.path(), &text, &|name| {
            set.clone().filter(|_| name == "CREDENTIALS_DIRECTORY")
        });
        parsed.unwrap_or_else(|findings| panic!("{set:?}: {findings}"));
    }
}

/// The example writer's statements, against the table that `setup --create-table` makes.
#[tokio::test]
async fn the_example_writer_writes() {
    let compose = compose();
    let script = strings(&compose["services"]["writer"]["command"]).join("\n");
    let database = Database::create(Version::Pg17, "writer").await;
    let sql: Client = database.connect().await;
    sql.batch(&read("sql/layouts/postrider.sql")).await;
    let (_, rest) = script.split_once("-c '").expect("a first statement");
    let (table, rest) = rest.split_once('\'').expect("its end");
    let (_, rest) = rest.split_once("-c \"").expect("a second statement");
    let (insert, _) = rest.split_once('"').expect("its end");
    sql.batch(table).await;
    sql.batch(insert).await;
    let event = sql.text("select event_type || ' ' || (payload->>'id') from outbox").await;
    assert_eq!(event.as_deref(), Some("OrderPlaced 1"));
}

#[test]
fn the_image_is_small_is_not_root_and_has_a_health_check() {
    let file = read("Dockerfile");
    let lines: Vec<&str> = file.lines().collect();
    let user = lines.iter().rfind(|line| line.starts_with("USER ")).expect("a user");
    assert!(!user.contains("root") && !user.ends_with(" 0"), "{user}");
    for word in ["HEALTHCHECK ", "ENTRYPOINT [\"postrider\"]", "CMD [\"run\"]", "--locked"] {
        assert!(file.contains(word), "{word}");
    }
    assert!(
        lines.iter().filter(|line| line.starts_with("FROM ")).count() == 2,
        "build and run are apart"
    );
}

/// systemd's own judgement where it is installed, and what it can't know: our exit codes and our times.
#[test]
fn the_systemd_unit_is_sound() {
    let unit = read("config/postrider.service");
    let value = |name: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name}"))
    };
    let typed: Vec<&str> = value("ExecStart").split_whitespace().collect();
    Args::try_parse_from(typed).unwrap_or_else(|error| panic!("ExecStart: {error}"));
    let never: Vec<u8> = value("RestartPreventExitStatus")
        .split_whitespace()
        .map(|code| code.parse().expect("a number"))
        .collect();
    assert_eq!(never, [Exit::Usage.code(), Exit::Halted.code()]);
    let stop: u64 = value("TimeoutStopSec").trim_end_matches('s').parse().expect("seconds");
    assert!(stop > 16, "shutdown_grace and the last words take up to 16 s");
    for name in ["DynamicUser", "NoNewPrivileges", "PrivateTmp", "ProtectHome"] {
        assert_eq!(value(name), "yes", "{name}");
    }
    // The program need not be installed for the unit to be judged.
    let dir = tempfile::TempDir::new().expect("a directory");
    let judged = unit.replace("/usr/local/bin/postrider", env!("CARGO_BIN_EXE_postrider"));
    let file = dir.path().join("postrider.service");
    fs::write(&file, judged).expect("a unit");
    let Ok(output) = Command::new("systemd-analyze").arg("verify").arg(&file).output() else {
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let about_ours: Vec<&str> =
        said.lines().filter(|line| line.contains("postrider.service")).collect();
    assert!(about_ours.is_empty(), "{about_ours:#?}");
}
