// One operation with the Go driver; prints its error.
package main

import (
	"context"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/bson"
	"go.mongodb.org/mongo-driver/mongo"
	"go.mongodb.org/mongo-driver/mongo/options"
)

func main() {
	nothing := context.Background()
	client, err := mongo.Connect(nothing, options.Client().ApplyURI(os.Args[1]))
	if err == nil {
		orders := client.Database("shop").Collection("orders")
		if os.Args[2] == "insert" {
			_, err = orders.InsertOne(nothing, bson.M{"x": 1})
		} else {
			_, err = orders.Find(nothing, bson.M{})
		}
	}
	if err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("no error")
	}
}
