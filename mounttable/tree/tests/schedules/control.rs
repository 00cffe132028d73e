//! The protocol that this one replaces, reduced to the essentials: a parent refers to a child, the child's row is
//! written if absent, and nothing compares the two. It must fail.

use std::time::Duration;

use ebla_model::Micros;
use ebla_mounttable_tree::store::memory::MemoryStore;
use ebla_mounttable_tree::store::{Cell, Change, ChildSelection, Condition, Environment, Family, Row, Store};

use crate::scheduler::{Draw, Task, alone, run};

/// Whether a row below `p` survives the deletion of `p`, and is found when `p` is created again.
pub(crate) fn resurrects(seed: u64) -> bool {
    let mut draw = Draw::seeded(seed);
    let table = Old(MemoryStore::at(Micros::from_millis(1_000_000)));
    alone(table.write_if_absent(""));
    let mut tasks: Vec<Task<'_>> = vec![Box::pin(table.mount("p", "p/c", "h:1")), Box::pin(table.delete("p"))];
    if draw.chance(1, 2) {
        tasks.push(Box::pin(table.mount("p", "p/c", "h:2")));
    }
    if draw.chance(1, 2) {
        tasks.push(Box::pin(table.delete("p")));
    }
    assert!(run(tasks, &mut draw, 0), "the control is stuck: seed {seed}");
    alone(table.delete("p"));
    alone(table.mount("p", "p/other", "h:8"));
    alone(table.read("p")).is_some() && alone(table.read("p/c")).is_some()
}

/// Rows with the names of their nodes, each with a version (`m:v`), references and servers.
struct Old(MemoryStore);

impl Old {
    async fn read(&self, name: &str) -> Option<Row> {
        self.0.read(&[name.to_string()], &ChildSelection::first(1_000)).await.unwrap().pop().unwrap()
    }

    fn cell(&self, value: String) -> Cell {
        Cell { timestamp: Micros::new(0), value }
    }

    fn stamp(&self) -> Change {
        Change::Set(Family::Meta, "v".to_string(), self.cell(self.0.unique_u64().to_string()))
    }

    /// Changes a row if its version is the one that was read.
    async fn change(&self, name: &str, read: &Row, mut steps: Vec<Change>) -> bool {
        let version = read.get(&(Family::Meta, "v".to_string())).unwrap().value.clone();
        steps.push(self.stamp());
        let when = Condition::Is(Family::Meta, "v".to_string(), version);
        self.0.change_if(name, when, steps).await.unwrap()
    }

    async fn write_if_absent(&self, name: &str) -> bool {
        self.0.change_if(name, Condition::RowAbsent, vec![self.stamp()]).await.unwrap()
    }

    /// Removes one reference, and no other to the same name.
    async fn remove_reference(&self, parent: &str, column: &str) {
        let steps = vec![Change::DeleteColumn(Family::Children, column.to_string()), self.stamp()];
        let when = Condition::Has(Family::Children, column.to_string());
        self.0.change_if(parent, when, steps).await.unwrap();
    }

    /// Writes the reference, with its own id, then the row.
    async fn create(&self, parent: &str, child: &str) {
        let Some(row) = self.read(parent).await else { return };
        let column = format!("{}:{child}", self.0.unique_u64());
        let refer = Change::Set(Family::Children, column.clone(), self.cell("1".to_string()));
        if self.change(parent, &row, vec![refer]).await && !self.write_if_absent(child).await {
            self.remove_reference(parent, &column).await;
        }
    }

    async fn mount(&self, parent: &str, child: &str, server: &str) {
        loop {
            if self.read(parent).await.is_none() {
                self.create("", parent).await;
            } else if let Some(row) = self.read(child).await {
                let mount = Change::Set(Family::Servers, server.to_string(), self.cell("{}".to_string()));
                if self.change(child, &row, vec![mount]).await {
                    return;
                }
            } else {
                self.create(parent, child).await;
            }
            self.0.advance(Duration::from_millis(1));
        }
    }

    /// Removes a row if it is unchanged; returns whether it did.
    async fn erase(&self, name: &str, read: &Row) -> bool {
        let version = read.get(&(Family::Meta, "v".to_string())).unwrap().value.clone();
        let when = Condition::Is(Family::Meta, "v".to_string(), version);
        self.0.change_if(name, when, vec![Change::DeleteRow]).await.unwrap()
    }

    /// Deletes the children first, and creates a missing one for that; then the row, unless a child has appeared.
    async fn delete(&self, parent: &str) {
        loop {
            let root = self.read("").await.unwrap();
            let Some(row) = self.read(parent).await else { return };
            let children: Vec<_> = references(&row).collect();
            for (column, child) in &children {
                match self.read(child).await {
                    Some(read) if self.erase(child, &read).await => self.remove_reference(parent, column).await,
                    Some(_) => {}
                    None => {
                        self.write_if_absent(child).await;
                    }
                }
            }
            if children.is_empty() && self.erase(parent, &row).await {
                for (column, _) in references(&root).filter(|(_, child)| *child == parent) {
                    self.remove_reference("", column).await;
                }
                return;
            }
        }
    }
}

/// The columns of a row's references, and their targets.
fn references(row: &Row) -> impl Iterator<Item = (&str, &str)> {
    let columns = row.keys().filter(|(family, _)| *family == Family::Children).map(|(_, column)| column.as_str());
    columns.filter_map(|column| Some((column, column.split_once(':')?.1)))
}
